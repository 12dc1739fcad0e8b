"""Outputs of tools as they look on real machines, written for these tests: the machines are made up."""

from __future__ import annotations

SMI_NARROW = """\
Mon Mar 12 08:15:30 2018
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 375.66                 Driver Version: 375.66                    |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla P100-SXM2...  On   | 0000:06:00.0     Off |                    0 |
| N/A   33C    P0    31W / 300W |      0MiB / 16276MiB |      0%    E. Thread |
+-------------------------------+----------------------+----------------------+
|   1  Tesla P100-SXM2...  On   | 0000:07:00.0     Off |                    0 |
| N/A   38C    P0    52W / 300W |    911MiB / 16276MiB |    100%   E. Process |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID  Type  Process name                               Usage      |
|=============================================================================|
|    1     40211    C   python3                                        901MiB |
+-----------------------------------------------------------------------------+
"""

SMI_WIDE = """\
```
me@blue7:~/train$ nvidia-smi
Tue Mar  5 10:11:12 2024
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   31C    P0              62W / 400W |      4MiB / 81920MiB |      0%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0A:00.0 Off |                   On |
| N/A   31C    P0              62W / 400W |     45MiB / 81920MiB |     N/A      Default |
|                                         |                      |              Enabled |
+-----------------------------------------+----------------------+----------------------+
|   2  NVIDIA A100-SXM4-80GB          On  | 00000000:47:00.0 Off |                    3 |
| N/A   41C    P0             312W / 400W |  70000MiB / 81920MiB |    100%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   3  ERR!                          ERR! | 00000000:4E:00.0 ERR!|                 ERR! |
|ERR!  ERR! ERR!            ERR! / ERR!   | ERR! / ERR!          |    ERR!         ERR! |
|                                         |                      |                 ERR! |
+-----------------------------------------+----------------------+----------------------+

+---------------------------------------------------------------------------------------+
| MIG devices:                                                                          |
+------------------+--------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                   Memory-Usage |        Vol|      Shared           |
|==================+================================+===========+=======================|
|  1    1   0   0  |              37MiB / 40192MiB  | 42      0 |  3   0    2    0    0 |
+------------------+--------------------------------+-----------+-----------------------+

+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|        ID   ID                                                             Usage      |
|=======================================================================================|
|    2   N/A  N/A   1234567      C   /opt/conda/bin/python                     69990MiB |
+---------------------------------------------------------------------------------------+
```
"""

SMI_580 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          Off |   00000000:18:00.0 Off |                    0 |
| N/A   92C    P0            690W /  700W |   71234MiB /  81559MiB |    100%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          Off |   00000000:2A:00.0 Off |                  Off |
| N/A   30C    P0             70W /  700W |       1MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""

SMI_QUERY = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Feb  5 17:02:17 2024
Driver Version                            : 535.129.03
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA A100-PCIE-40GB
    Persistence Mode                      : Disabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : GPU-0a1b2c3d-aaaa-bbbb-cccc-000000000001
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : Yes
    PCI
        Bus                               : 0x3B
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    Fan Speed                             : N/A
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 40960 MiB
        Reserved                          : 500 MiB
        Used                              : 4 MiB
    Compute Mode                          : Prohibited
    Utilization
        Gpu                               : 0 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 1
            DRAM Correctable              : 7
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Uncorrectable            : 1
            DRAM Uncorrectable            : 4
    Retired Pages
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 31 C
    GPU Power Readings
        Power Draw                        : 40.12 W
        Current Power Limit               : 150.00 W
        Default Power Limit               : 250.00 W
    Clocks
        SM                                : 210 MHz
    Max Clocks
        SM                                : 1410 MHz
    Processes                             : None
"""

SMI_QUERY_OLD = """\
Driver Version                      : 352.79
Attached GPUs                       : 1
GPU 0000:04:00.0
    Product Name                    : Tesla K80
    Persistence Mode                : Enabled
    Clocks Throttle Reasons
        Idle                        : Active
        SW Power Cap                : Not Active
        HW Slowdown                 : Not Active
        Unknown                     : Not Active
    Ecc Mode
        Current                     : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory       : 0
                Total               : 0
            Double Bit
                Device Memory       : 2
                Total               : 2
    Retired Pages
        Double Bit ECC              : 1
        Pending                     : No
    Power Readings
        Power Draw                  : 58.11 W
        Power Limit                 : 149.00 W
        Default Power Limit         : 149.00 W
    Compute Mode                    : Default
"""

IBSTAT = """\
CA 'mlx5_0'
        CA type: MT4123
        Number of ports: 1
        Firmware version: 20.31.1014
        Port 1:
                State: Active
                Physical state: LinkUp
                Rate: 200
                Base lid: 12
                SM lid: 1
                Link layer: InfiniBand
CA 'mlx5_1'
        CA type: MT4123
        Number of ports: 1
        Port 1:
                State: Down
                Physical state: Polling
                Rate: 10
                Base lid: 65535
                SM lid: 0
                Link layer: InfiniBand
"""

IBSTATUS = """\
Infiniband device 'mlx5_bond_0' port 1 status:
        default gid:     fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f
        base lid:        0x0
        sm lid:          0x0
        state:           4: ACTIVE
        phys state:      5: LinkUp
        rate:            10 Gb/sec (1X QDR)
        link_layer:      Ethernet

Infiniband device 'mlx5_2' port 1 status:
        default gid:     fe80:0000:0000:0000:0a0b:0cff:fe0d:0e10
        base lid:        0x22
        sm lid:          0x1
        state:           4: ACTIVE
        phys state:      5: LinkUp
        rate:            400 Gb/sec (4X NDR)
        link_layer:      InfiniBand
"""

IBV_DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t22.33.1048
\tvendor_part_id:\t\t\t4125
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t25.0 Gbps (32)
\t\t\tGID[  0]:\t\tfe80::a0b:cff:fe0d:e0f, RoCE v1
\t\t\tGID[  2]:\t\t::ffff:10.1.1.1, RoCE v1
\t\t\tGID[  3]:\t\t::ffff:10.1.1.1, RoCE v2
hca_id:\tmlx5_1
\tvendor_part_id:\t\t\t4123
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_INIT (2)
\t\t\tsm_lid:\t\t\t0
\t\t\tlink_layer:\t\tInfiniBand
"""

SHOW_GIDS = """\
DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
---     ----    -----   ---                                     ------------    ---     ---
mlx5_0  1       0       fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f                 v1      eth2
mlx5_0  1       3       0000:0000:0000:0000:0000:ffff:0a01:0101 10.1.1.1        v2      eth2
"""

COLLECT_ENV = """\
Collecting environment information...
PyTorch version: 2.1.2+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1
ROCM used to build PyTorch: N/A

OS: Rocky Linux 9.3 (Blue Onyx) (x86_64)
Python version: 3.10.13 | packaged by conda-forge |  (64-bit runtime)
Python platform: Linux-5.14.0-362.el9.x86_64-x86_64-with-glibc2.34
Is CUDA available: True
CUDA runtime version: 11.8.89
GPU models and configuration:
GPU 0: NVIDIA L40S
GPU 1: NVIDIA L40S

Nvidia driver version: 535.86.10
cuDNN version: Probably one of the following:
/usr/lib64/libcudnn.so.8.9.7
/usr/lib64/libcudnn_ops_infer.so.8.9.7
HIP runtime version: N/A

Versions of relevant libraries:
[pip3] numpy==1.26.2
[pip3] nvidia-nccl-cu12==2.18.1
[pip3] torch==2.1.2+cu121
[pip3] torchvision==0.16.2+cu121
[conda] numpy                     1.26.2                   pypi_0    pypi
"""

COLLECT_ENV_NO_TORCH = """\
PyTorch version: N/A
CUDA used to build PyTorch: N/A
OS: Ubuntu 22.04.3 LTS (aarch64)
Python platform: Linux-5.15.122-tegra-aarch64-with-glibc2.35
Is CUDA available: N/A
CUDA runtime version: 12.2.140
GPU models and configuration: Could not collect
Nvidia driver version: Could not collect
cuDNN version: Could not collect
"""

COLLECT_ENV_OLD = """\
UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 9010).
PyTorch version: 1.9.0+cu102
Is debug build: No
CUDA used to build PyTorch: 10.2
OS: CentOS Linux 7 (Core) (x86_64)
Is CUDA available: No
CUDA runtime version: Could not collect
GPU models and configuration: GPU 0: Tesla P100-PCIE-16GB
Nvidia driver version: 390.30
[pip3] numpy==2.0.1
[pip3] nvidia-nccl-cu11==2.14.3
[pip3] nvidia-nccl-cu12==2.18.1
[pip3] torch==1.9.0+cu102
[pip3] torchvision==0.15.2
[conda] pytorch                   1.8.1           py3.8_cuda11.1_cudnn8.0.5_0    pytorch
"""

NCCL_IB = """\
alpha:100:100 [0] NCCL INFO cudaDriverVersion 12040
alpha:100:100 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.1<0>
NCCL version 2.21.5+cuda12.4
alpha:100:200 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
alpha:100:200 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.1.0.1<0>
alpha:100:200 [0] NCCL INFO Using network IB
alpha:100:200 [0] NCCL INFO comm 0x55 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1000 - Init START
alpha:100:200 [0] NCCL INFO NVLS multicast support is available on dev 0
alpha:100:200 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
alpha:100:200 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
alpha:100:200 [0] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer
"""

NCCL_TROUBLE = """\
0: [default0]:beta:7:7 [0] NCCL INFO Bootstrap : Using [0]docker0:172.17.0.2<0>
1: beta:8:8 [1] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
beta:7:9 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.2<0>
beta:7:9 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.
beta:7:9 [0] NCCL INFO Channel 00 : 0[1000] -> 1[2000] via SHM/direct/direct
beta:7:9 [0] NCCL INFO Ring 01 : 1 -> 2 [send] via NET/Socket/0
gamma:5:6 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.9.0.2<54263> failed : No route to host
gamma:5:7 [1] include/socket.h:409 NCCL WARN Net : Connect to 10.9.0.2<54264> failed : No route to host
"""

NCCL_2_2 = """\
delta:18:18 [0] INFO NET : Using interface lo:127.0.0.1<0>
NCCL version 2.2.13+cuda9.0
delta:18:19 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out
"""

MISMATCH = """\
# nvidia-smi
Failed to initialize NVML: Driver/library version mismatch
NVML library version: 535.161
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
[ 1234.567890] NVRM: Xid (PCI:0000:9c:00): 79, pid=4321, GPU has fallen off the bus.
[ 1234.667890] NVRM: Xid (PCI:0000:9c:00): 79, pid=4321, GPU has fallen off the bus.
[ 1240.000000] NVRM: Xid (PCI:0000:3b:00): 31, pid=99, name=python, MMU Fault
"""

TOPO = """\
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      NV18    0-31            0
GPU1    NV18     X      0-31            0
"""

EVERYTHING = f"{NCCL_IB}\n{SMI_WIDE}\n{TOPO}\n{COLLECT_ENV}\n{IBSTAT}\n{SMI_QUERY}\n{IBV_DEVINFO}\n{MISMATCH}"
"""Several tools in one paste, in no order."""

ALL = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
