"""One rank of a launched run: `python -m drivetrain.train.worker RUN_DIR`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.config.fitted_batch import note_smaller
from drivetrain.spec.errors import ExplainedError, InputError
from drivetrain.spec.exit_codes import ExitCode, exit_code_for_signal
from drivetrain.spec.run_dir import RunDir
from drivetrain.train.interruption import listen

if TYPE_CHECKING:
    from drivetrain.config.schema import RunConfig


def run_worker(config: RunConfig, run_dir: Path) -> int:
    """Trains as `config` says into `run_dir`, as the rank that the environment names.

    Returns the exit code. What went wrong is on stderr, and in the file that the launcher named for it.
    """
    trainer = None
    try:
        from drivetrain.train.trainer import Trainer

        trainer = Trainer(config, output=run_dir)
        return trainer.fit().exit_code
    except ExplainedError as error:
        _report(error, "")
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        has_trained = trainer is not None and trainer.run.has_stepped
        return ExitCode.USAGE if isinstance(error, InputError) and not has_trained else ExitCode.FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return exit_code_for_signal(signal.SIGINT)
    except SystemExit as error:
        # Whatever its code says: a rank that leaves before the end has not trained to the end.
        text = "".join(traceback.format_exception(error))
        what = f"the task called sys.exit({error.code!r}) before training had ended"
        _report(RuntimeError(what), text)
        sys.stderr.write(f"{text}{what}\n")
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - this is the process's outermost frame
        if trainer is not None and config.micro_batch == "auto" and _is_out_of_memory(error):
            note_smaller(RunDir(run_dir), trainer.run.plan.micro_batch)
        text = "".join(traceback.format_exception(error))
        _report(error, text)
        sys.stderr.write(text)
        return ExitCode.FAILED


def _is_out_of_memory(error: BaseException) -> bool:
    from torch import OutOfMemoryError

    return isinstance(error, OutOfMemoryError)


def _report(error: BaseException, text: str) -> None:
    """Tells the launcher, in the form of torch's error files, when and how this rank failed."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    now = time.time()
    extra = {"py_callstack": text, "timestamp": str(int(now)), "timestamp_s": now}
    document = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    try:
        Path(path).write_text(json.dumps(document), encoding="utf-8")
    except OSError as problem:
        sys.stderr.write(f"could not write {path}: {problem}\n")


def main() -> None:
    listen()  # before torch is imported, which takes seconds
    from drivetrain.config.load import load

    run_dir = Path(sys.argv[1])
    config = load(RunDir(run_dir).asked_config)
    code = run_worker(config, run_dir)
    sys.stdout.flush()
    sys.stderr.flush()
    if code != ExitCode.DONE:
        # The interpreter's shutdown would wait for loader processes and collectives whose peers are gone.
        os._exit(code)


if __name__ == "__main__":
    main()
