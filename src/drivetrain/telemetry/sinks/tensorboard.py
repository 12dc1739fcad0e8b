"""TensorBoard event files under `tb/`; `tensorboard --logdir RUN/tb` shows them."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.telemetry.sinks.table import SinkRequest


def open_sink(request: SinkRequest) -> TensorBoardSink:
    return TensorBoardSink(request)


class TensorBoardSink:
    """Writes scalars and texts. After a resume TensorBoard hides what was written past the resumed step."""

    def __init__(self, request: SinkRequest) -> None:
        # Imports torch and takes a second: only where a run writes to it.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            log_dir=str(request.run_dir.tensorboard),
            purge_step=request.start_step + 1 if request.start_step else None,
            flush_secs=10,
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, text, global_step=step)

    def close(self) -> None:
        self._writer.close()
