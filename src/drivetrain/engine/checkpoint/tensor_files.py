"""Tensors to and from torch DCP files, in a way that no file can make run code."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

# All that DCP's `.metadata` is made of, besides dtypes. Anything else in the pickle is refused.
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
}


def write_tensors(tensors: dict[str, Tensor], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Writes `tensors` to `folder`, each once; ranks share the work of those they all hold.

    Called by all ranks of `group`, or by one process without any.
    """
    with _no_warning_alone():
        save(
            dict(tensors), storage_writer=FileSystemWriter(folder), process_group=group, no_dist=group is None
        )


def read_tensors(tensors: dict[str, Any], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Copies what `folder` holds into `tensors`, by name. Called by all ranks of `group`, or by one process.

    Raises:
        pickle.UnpicklingError: the metadata holds something else than tensors.
    """
    with _no_warning_alone():
        load(tensors, storage_reader=_SafeReader(folder), process_group=group, no_dist=group is None)


def read_sizes(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Shape and dtype of each tensor in `folder`.

    Raises:
        pickle.UnpicklingError: the metadata holds something else than tensors.
    """
    entries: dict[str, Any] = _SafeReader(folder).read_metadata().state_dict_metadata
    return entries


@contextmanager
def _no_warning_alone() -> Iterator[None]:
    with warnings.catch_warnings():
        # DCP warns when it is told not to use a process group, which is what one process wants.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _enum_member(owner: Any, name: str) -> Any:
    """What `getattr` is needed for in DCP's metadata: Python before 3.11.4 pickles enum members by it."""
    if owner is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError(f"getattr({owner!r}, {name!r}) does not belong into metadata")
    return _MEM_FORMAT_ENCODING[name]


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into a checkpoint's metadata")


class _SafeReader(FileSystemReader):
    """Reads `.metadata` with only DCP's own plain classes allowed, and tensors only.

    DCP reads tensors with weights_only, but would unpickle an entry that the metadata calls bytes; this
    project writes none (the rest of a checkpoint is JSON), so such an entry is refused.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002 - DCP's signature
        path = self._get_metadata_path(kwargs.get("rank"))
        with self.fs.create_stream(path, "rb") as file:
            metadata = _MetadataUnpickler(io.BytesIO(file.read())).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{path} holds a {type(metadata).__name__}, not DCP metadata")
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{path}: {name!r} is no tensor, and only tensors are read")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
