"""Reads single values as NVIDIA's tools print them: a number with a unit, N/A, or an error."""

from __future__ import annotations

import re

from drivetrain.spec.unknown import Unknown

_NUMBER = re.compile(r"(?<![\w.])(\d{1,15}(?:\.\d{1,9})?)")
_ERROR = re.compile(r"ERR!|Unknown Error|is lost|GPU requires reset", re.IGNORECASE)
_NOT_THERE = re.compile(
    r"^\[?(?:N/?A|Not (?:Supported|Available|Found|Active)|None|-+|Insufficient.*)\]?$", re.I
)


def is_error(text: str) -> bool:
    """`ERR!` and its like: the tool asked and got no answer, which is not "not supported"."""
    return _ERROR.search(text) is not None


def number(text: str, what: str) -> float | Unknown:
    """The first number in `text` (`44W`, ` 966MiB`, `16x`)."""
    text = text.strip()
    if is_error(text):
        return Unknown(f"the tool prints {text!r} for {what}")
    if _NOT_THERE.match(text):
        return Unknown(f"the tool prints {text} for {what}")
    match = _NUMBER.search(text)
    return float(match.group(1)) if match else Unknown(f"{what} cannot be read from {text[:40]!r}")


def count(text: str, what: str) -> int | Unknown:
    value = number(text, what)
    return value if isinstance(value, Unknown) else int(value)


def flag(text: str, what: str) -> bool | Unknown:
    """On, Enabled, Yes, Active → true; Off, Disabled, No, Not Active → false."""
    word = text.strip().rstrip("*").strip().lower()
    if word in ("on", "enabled", "yes", "active", "true"):
        return True
    if word in ("off", "disabled", "no", "not active", "false"):
        return False
    return Unknown(f"the tool prints {text.strip()[:40] or 'nothing'} for {what}")


def plain(text: str, what: str) -> str | Unknown:
    text = text.strip()
    if not text or _NOT_THERE.match(text) or is_error(text):
        return Unknown(f"the tool prints {text or 'nothing'} for {what}")
    return text


_MODES = (
    ("exclusive_thread", re.compile(r"^(?:E\. ?Thread|Exclusive_?Thread)", re.IGNORECASE)),
    ("exclusive_process", re.compile(r"^(?:E\. ?Proc|Exclusive_?Proc|Exclusive$)", re.IGNORECASE)),
    ("prohibited", re.compile(r"^Prohib", re.IGNORECASE)),
    ("default", re.compile(r"^Default", re.IGNORECASE)),
)


def compute_mode(text: str) -> str | Unknown:
    text = text.strip()
    found = next((name for name, pattern in _MODES if pattern.match(text)), None)
    return found or Unknown(f"the tool prints {text[:40] or 'nothing'} for the compute mode")
