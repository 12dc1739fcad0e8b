"""CUDA_VISIBLE_DEVICES' rules, and what is said where NVML is missing or fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from drivetrain.hardware.gpus import visible_gpus
from drivetrain.spec.unknown import Unknown

UUIDS = ("GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "GPU-cccc4444")


class FakeNvml:
    """nvidia-ml-py's calls that are used here, and no others."""

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(f"code {value}")
            self.value = value

    def __init__(self, uuids=UUIDS, *, init_code=None, list_code=None, mig=None, as_bytes=False):
        self.uuids, self.init_code, self.list_code = uuids, init_code, list_code
        self.mig = mig or {}
        self.as_bytes = as_bytes
        self.num_open = 0

    def nvmlInit(self):  # noqa: N802  NVML's names
        if self.init_code is not None:
            raise self.NVMLError(self.init_code)
        self.num_open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        if self.list_code is not None:
            raise self.NVMLError(self.list_code)
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return SimpleNamespace(index=index, uuid=self.uuids[index])

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return handle.uuid.encode() if self.as_bytes else handle.uuid

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"Fast GPU" if self.as_bytes else "Fast GPU"

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if handle.index not in self.mig:
            raise self.NVMLError(3)  # not supported
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, slot):  # noqa: N802
        if slot >= len(self.mig[handle.index]):
            raise self.NVMLError(6)  # not found: an empty slot
        return SimpleNamespace(uuid=self.mig[handle.index][slot])


def seen(listed, **fake):
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    return visible_gpus(environ, nvml=FakeNvml(**fake))


def test_all_are_visible_where_the_variable_is_not_set():
    gpus = seen(None)
    assert (gpus.count, gpus.uuids, gpus.names[0]) == (4, UUIDS, "Fast GPU")
    assert seen(None, as_bytes=True).uuids == UUIDS


@pytest.mark.parametrize(
    "listed, wanted",
    [
        ("0,2", (0, 2)),
        ("3, 1", (3, 1)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,-1,1", (0,)),
        ("0,9,1", (0,)),
        ("1,x,0", (1,)),
        ("2a,0", (2, 0)),
        ("0,0", ()),
        ("GPU-bbbb3333", (2,)),
        ("GPU-bbb,GPU-aaaa2", (2, 1)),
        ("GPU-aaaa", ()),
        ("GPU-cccc,GPU-dddd,GPU-bbbb", (3,)),
        ("GPU-cccc4444,3", ()),
    ],
)
def test_the_list_ends_at_the_first_entry_that_names_no_gpu(listed, wanted):
    gpus = seen(listed)
    assert gpus.uuids == tuple(UUIDS[index] for index in wanted)
    assert gpus.count == len(wanted)
    assert f"CUDA_VISIBLE_DEVICES={listed}" in gpus.reason


def test_the_entry_that_ended_the_list_is_named():
    assert "ends at '9'" in seen("0,9,1").reason


def test_a_process_sees_one_mig_instance():
    mig = {0: ["MIG-11", "MIG-22"]}
    assert (seen("MIG-22", mig=mig).count, seen("MIG-22", mig=mig).uuids) == (1, ("MIG-22",))
    both = seen("MIG-11,MIG-22", mig=mig)
    assert (both.count, "one MIG instance" in both.reason) == (1, True)
    assert seen("MIG-33", mig=mig).count == 0


def test_a_split_gpu_named_by_index_is_unknown_rather_than_guessed():
    gpus = seen("0", mig={0: ["MIG-11"]})
    assert isinstance(gpus.count, Unknown)
    assert "MIG-11" in gpus.reason
    assert seen("1,2", mig={0: ["MIG-11"]}).count == 2


@pytest.mark.parametrize("code, wanted", [(12, "libnvidia-ml.so.1"), (9, "not loaded")])
def test_no_driver_is_no_gpu_with_the_reason(code, wanted):
    gpus = seen("0", init_code=code)
    assert gpus.count == 0
    assert wanted in gpus.reason


@pytest.mark.parametrize("fake", [{"init_code": 18}, {"list_code": 999}])
def test_a_failing_nvml_is_unknown_with_device_files_as_evidence(fake, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    def by_files(listed):
        environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
        return visible_gpus(environ, nvml=FakeNvml(**fake), dev=tmp_path)

    assert isinstance(by_files(None).count, Unknown)
    assert "code" in by_files(None).reason
    assert [by_files(listed).count_by_files for listed in (None, "0,2", "0,7", "", "GPU-x")] == [
        3,
        2,
        1,
        0,
        1,
    ]


def test_nvml_is_closed_again_also_after_a_failure():
    for fake in (FakeNvml(), FakeNvml(list_code=999)):
        visible_gpus({}, nvml=fake)
        assert fake.num_open == 0


def test_this_machine_answers_with_a_reason():
    gpus = visible_gpus({})
    assert gpus.reason
    assert isinstance(gpus.count, Unknown) or gpus.count == len(gpus.uuids)
