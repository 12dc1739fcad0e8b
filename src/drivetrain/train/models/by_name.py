"""Classification models by name: ours, torchvision's, timm's."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable
from typing import Any

from torch import nn

from drivetrain.spec.errors import InputError
from drivetrain.train.models.digits_cnn import DigitsCnn

_OWN: dict[str, Callable[..., nn.Module]] = {"digits_cnn": DigitsCnn}


def model_builder(name: str, *, num_classes: int, kwargs: dict[str, Any]) -> Callable[[], nn.Module]:
    """A factory for the model called `name`, with random weights.

    Looked for among drivetrain's, then torchvision's, then timm's; `timm/NAME` asks timm alone.

    Raises:
        InputError: nobody has it; names the nearest ones.
    """
    if name in _OWN:
        return lambda: _OWN[name](num_classes=num_classes, **kwargs)
    if not name.startswith("timm/"):
        builder = _torchvision(name, num_classes, kwargs)
        if builder is not None:
            return builder
    builder = _timm(name.removeprefix("timm/"), num_classes, kwargs)
    if builder is not None:
        return builder
    near = difflib.get_close_matches(name, sorted(_known_names()), n=3)
    missing = [lib for lib in ("torchvision", "timm") if importlib.util.find_spec(lib) is None]
    install = f"install {' or '.join(missing)} for more" if missing else "check the name"
    raise InputError(
        f"model {name!r}",
        "no classification model of that name is installed",
        f"did you mean {' or '.join(near)}?" if near else install,
    )


def _torchvision(name: str, num_classes: int, kwargs: dict[str, Any]) -> Callable[[], nn.Module] | None:
    if importlib.util.find_spec("torchvision") is None:
        return None
    from torchvision import models

    if name not in models.list_models(module=models):
        return None
    extra = dict(kwargs)
    if name in ("googlenet", "inception_v3"):
        # Their auxiliary heads return a tuple in training; without them they are ordinary classifiers.
        extra.setdefault("aux_logits", False)
        extra.setdefault("init_weights", True)
    return lambda: models.get_model(name, weights=None, num_classes=num_classes, **extra)


def _timm(name: str, num_classes: int, kwargs: dict[str, Any]) -> Callable[[], nn.Module] | None:
    if importlib.util.find_spec("timm") is None:
        return None
    import timm

    if not timm.is_model(name):
        return None
    return lambda: timm.create_model(name, pretrained=False, num_classes=num_classes, **kwargs)


def _known_names() -> set[str]:
    names = set(_OWN)
    if importlib.util.find_spec("torchvision") is not None:
        from torchvision import models

        names |= set(models.list_models(module=models))
    if importlib.util.find_spec("timm") is not None:
        import timm

        names |= set(timm.list_models())
    return names
