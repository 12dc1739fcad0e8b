"""Which failures of `dataset[i]` are a bad sample and which a bug, and what the sample is called."""

from __future__ import annotations

import pickle
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from drivetrain.spec.errors import BadSampleError, InputError

OnBadSample = Literal["fail", "skip"]

# Faults of code, not of data: raised with their traceback whatever `on_bad_sample` says, since skipping would
# hide them behind a run that trains on nothing. Everything else that reading, decoding or checking a sample
# raises (OSError, ValueError, LookupError, EOFError, struct.error, zlib.error, a library's own exceptions,
# torch's RuntimeError for a broken image) is the sample's fault.
_BUGS: tuple[type[Exception], ...] = (
    NameError,
    TypeError,
    AttributeError,
    ImportError,
    NotImplementedError,
    AssertionError,
    MemoryError,
    RecursionError,
    SystemError,
    StopIteration,
    StopAsyncIteration,
)


@dataclass(frozen=True, kw_only=True)
class SkippedSample:
    """A sample that keeps its slot with weight 0."""

    source: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReadFailure:
    """Why a micro-batch could not be read; crosses from a worker process as a value, so that the user sees
    one message instead of two nested tracebacks."""

    error: InputError | None = None
    sample: SkippedSample | None = None
    cause: Exception | None = None

    def throw(self) -> None:
        """Raises it: InputError, or BadSampleError from the original exception."""
        if self.error is not None:
            raise self.error
        assert self.sample is not None
        raise BadSampleError(source=self.sample.source, reason=self.sample.reason) from self.cause


def is_bug(error: Exception) -> bool:
    """Whether `error` is a fault of code rather than of one sample."""
    if isinstance(error, Warning):
        # Somebody turned warnings into errors. Pillow's about a huge image is about the sample.
        return type(error).__name__ != "DecompressionBombWarning"
    # Looked up, not imported: where torch was never imported, it raised nothing.
    torch = sys.modules.get("torch")
    accelerator_faults = (torch.OutOfMemoryError, torch.AcceleratorError) if torch else ()
    return isinstance(error, (*_BUGS, *accelerator_faults))


def describe(dataset: Any, index: int, error: Exception) -> SkippedSample:
    """Names the sample and says in one line what is wrong with it."""
    if isinstance(error, BadSampleError):
        return SkippedSample(source=error.source, reason=error.reason)
    first_line = (str(error).strip() or "no message").splitlines()[0]
    # These classes say nothing that the message does not.
    named = isinstance(error, OSError) or type(error) is ValueError
    reason = first_line if named else f"{type(error).__name__}: {first_line}"
    return SkippedSample(source=source_of(dataset, index), reason=reason)


def source_of(dataset: Any, index: int) -> str:
    """What the user calls sample `index`: its path where the data set tells one, else "sample 17 of MyData".

    Asked of the data set: a method `source(index)`, torchvision's `samples` (path, class), or, of a Subset,
    its inner data set.
    """
    try:
        if callable(getattr(dataset, "source", None)):
            return str(dataset.source(index))
        if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
            return source_of(dataset.dataset, int(dataset.indices[index]))
        if isinstance(getattr(dataset, "samples", None), list):
            named = dataset.samples[index][0]
            if isinstance(named, str):
                return named
    # Naming a bad sample must not replace its error by another.
    except Exception as error:  # noqa: BLE001
        return f"sample {index} of {type(dataset).__name__} (its name: {type(error).__name__}: {error})"
    return f"sample {index} of {type(dataset).__name__}"


def crossing_processes(error: Exception | None) -> Exception | None:
    """`error` if it survives pickling, without its traceback; else None (its text is in the reason)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copied = pickle.loads(pickle.dumps(error))
    # Whatever an exception's own pickling raises only means that it stays behind.
    except Exception:  # noqa: BLE001
        return None
    return copied if isinstance(copied, Exception) else None
