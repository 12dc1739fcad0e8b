"""Who may use which GPU: locks on files, one a GPU, that the kernel releases with the last that holds them.

    drivetrain-gpu-UUID    byte 0 locked: the GPU is leased, and the file says by whom
                           bytes from 2^20 on: places in the queue for this GPU, the lowest is first
    drivetrain-gpu-queue   locked for the moment in which somebody chooses, or takes a place

The locks belong to an open file (OFD locks, fcntl(2)), so that a command and what it starts inherit them. No
lock outlives the last process that has the file open, and nothing needs to be cleaned up. They bind those who
take leases, no one else: whoever uses a GPU without one is seen through NVML, and avoided.
"""
