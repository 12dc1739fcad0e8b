"""The facts of this node: every probe once, those that may crash or hang in processes of their own."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drivetrain.doctor import probe_children as children
from drivetrain.doctor.checks.packages import FRAMEWORKS
from drivetrain.doctor.facts import Driver, NodeFacts, Storage
from drivetrain.doctor.probe_host import read_host, read_kernel_driver, read_system, read_xids
from drivetrain.doctor.probe_nvcc import read_nvcc, read_system_libraries
from drivetrain.doctor.probe_packages import read_libraries, read_python
from drivetrain.doctor.probe_rdma import read_rdma
from drivetrain.spec.unknown import Unknown

_LEFT_OUT = "left out by --quick"


def read_this_node(environ: Mapping[str, str], *, data_folder: Path, is_quick: bool) -> NodeFacts:
    """Takes a few seconds with `is_quick`, else up to a minute: frameworks, storage and the functional test.

    Args:
        environ: the environment to look at, and that children get.
        data_folder: where storage is measured.
    """
    # What only reads runs side by side; what is timed comes alone, afterwards.
    with ThreadPoolExecutor(max_workers=3) as pool:
        nvml_job = pool.submit(children.read_nvml, environ)
        torch_job = pool.submit(children.read_torch, environ)
        name_job = pool.submit(children.read_own_addresses, environ)
        system, host, rdma = read_system(), read_host(environ), read_rdma()
        libraries, xids, nvcc = read_libraries(environ), read_xids(), read_nvcc(environ)
        nvml, torch, addresses = nvml_job.result(), torch_job.result(), name_job.result()
    driver = _driver(nvml.driver, torch.libcuda)
    gpus = nvml.gpus
    if isinstance(gpus, Unknown) and system.nvidia_pci_devices == 0 and isinstance(driver.version, Unknown):
        gpus = ()  # no device on the bus and no driver: there is none, which is known
    facts = NodeFacts(
        node=socket.gethostname(),
        read=("this machine",),
        is_live=True,
        system=system,
        driver=driver,
        gpus=gpus,
        gpu_processes=nvml.processes,
        xids=xids,
        torch=torch.torch,
        libraries=dataclasses.replace(
            libraries,
            nvcc=nvcc,
            loaded=torch.loaded,
            system_cudnn=read_system_libraries("libcudnn"),
            system_nccl=read_system_libraries("libnccl"),
        ),
        rdma=rdma,
        host=dataclasses.replace(host, addresses_of_own_name=addresses),
        python=dataclasses.replace(read_python(), numpy_works=torch.numpy_works),
    )
    return _with_slow_parts(facts, environ, data_folder=data_folder, is_quick=is_quick)


def _with_slow_parts(
    facts: NodeFacts, environ: Mapping[str, str], *, data_folder: Path, is_quick: bool
) -> NodeFacts:
    if is_quick:
        left_out = Unknown(_LEFT_OUT)
        return dataclasses.replace(
            facts,
            storage=Storage(folder=str(data_folder), write_bytes_per_s=left_out, read_bytes_per_s=left_out),
            frameworks=children.left_out_frameworks(FRAMEWORKS, _LEFT_OUT),
            trials=left_out,
        )
    storage = children.measure_storage(data_folder, environ)
    frameworks = children.try_frameworks(FRAMEWORKS, environ)
    if isinstance(facts.torch.import_error, str) and facts.torch.import_error:
        return dataclasses.replace(
            facts, storage=storage, frameworks=frameworks, trials=Unknown("torch cannot be imported")
        )
    num_gpus = facts.torch.num_gpus if isinstance(facts.torch.num_gpus, int) else 0
    return dataclasses.replace(
        facts, storage=storage, frameworks=frameworks, trials=children.run_trials(environ, num_gpus=num_gpus)
    )


def _driver(by_nvml: Driver, libcuda: str | Unknown) -> Driver:
    kernel = read_kernel_driver()
    # Forward compatibility packages are installed into …/compat, and found by LD_LIBRARY_PATH.
    is_compat = isinstance(libcuda, str) and "/compat/" in libcuda
    return dataclasses.replace(
        by_nvml,
        kernel_module=kernel.kernel_module,
        has_open_modules=kernel.has_open_modules,
        cuda_compat=str(Path(str(libcuda)).parent) if is_compat else "",
    )
