"""A checkpoint that wants to run code is refused before it does."""

import io
import pickle

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, BytesStorageMetadata, Metadata

from drivetrain.engine.checkpoint.tensor_files import (
    _MetadataUnpickler,
    read_sizes,
    read_tensors,
    write_tensors,
)


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_what_dcp_writes_is_read_in_every_common_dtype(tmp_path):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)
    tensors = {str(dtype): torch.arange(6).to(dtype) for dtype in dtypes}
    write_tensors(tensors, tmp_path, None)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    read_tensors(loaded, tmp_path, None)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_code_in_the_metadata_is_not_run(tmp_path):
    trace = tmp_path / "ran"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Bomb(trace)))
    with pytest.raises(pickle.UnpicklingError, match="does not belong"):
        read_sizes(tmp_path)
    assert not trace.exists()


def test_entries_that_dcp_would_unpickle_are_refused(tmp_path):
    metadata = Metadata(state_dict_metadata={"model.weight": BytesStorageMetadata()}, storage_data={})
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(pickle.UnpicklingError):
        read_sizes(tmp_path)


class _Getattr:
    """Pickles as `getattr(owner, name)`, which is how Python before 3.11.4 pickles members of an enum."""

    def __init__(self, owner, name):
        self.call = (owner, name)

    def __reduce__(self):
        return getattr, self.call


def test_enum_members_in_the_form_of_older_pythons_are_read():
    text = pickle.dumps(_Getattr(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT"))
    assert _MetadataUnpickler(io.BytesIO(text)).load() is _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT


def test_no_other_attribute_can_be_had():
    for owner, name in ((_MEM_FORMAT_ENCODING, "__class__"), (torch.Size, "__subclasses__")):
        text = pickle.dumps(_Getattr(owner, name))
        with pytest.raises(pickle.UnpicklingError, match="does not belong"):
            _MetadataUnpickler(io.BytesIO(text)).load()
