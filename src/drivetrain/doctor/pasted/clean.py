"""Takes off what terminals, forums and editors put around pasted text; leaves the text itself alone."""

from __future__ import annotations

import html
import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# A terminal's escape whose first byte got lost on the way ("[32m"); never part of these tools' output.
_LAME_ESCAPES = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3})*)?m(?![A-Za-z])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u200c\u200d\u2060\ufeff]")
_QUOTE = re.compile(r"^(?:\s{0,3}>\s?)+(?!=)")
# What launchers and log collectors put before every line: mpirun's tags, Ray's, torchrun's, time stamps.
_STAMP = re.compile(
    r"^\s*(?:\[?\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}[\d.,:+Z-]*\]?\s"
    r"|\[\d{1,6},\d{1,6}\]<std(?:out|err)>:\s?|\[(?:rank|default)?\d{1,6}\]:\s?"
    r"|\(\w{1,40} pid=\d{1,9}[^)]{0,60}\)\s)"
)
_FENCE = re.compile(r"^\s*(?:```|~~~).*$")
_PROMPT_HOST = re.compile(
    r"^(?:\([\w.-]{1,60}\)\s*)*(?:[\w.-]{1,60}@(?P<host>[A-Za-z][\w.-]{0,80}):[^\s#$]{0,200}\s?[#$]"
    r"|[\w.-]{1,60}@(?P<plain>[A-Za-z][\w.-]{0,80})\s[^\s#$]{0,80}\s?[#$](?:\s|$)"
    r"|\[[\w.-]{1,60}@(?P<other>[A-Za-z][\w.-]{0,80})\s[^\]\n]{0,200}\][#$])"
)


def decode(data: bytes) -> str:
    """Text of any of the encodings that users save in; what fits none becomes U+FFFD."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace")


def clean(text: str) -> list[str]:
    """The lines of `text` without colours, quote marks, fences, entities and other people's line endings."""
    text = _ESCAPES.sub("", text)
    text = _LAME_ESCAPES.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ").replace("\u2002", " ")
    text = _CONTROLS.sub("", text)
    lines = [_STAMP.sub("", _QUOTE.sub("", line)).rstrip() for line in text.split("\n")]
    return ["" if _FENCE.match(line) else line for line in lines]


def prompt_host(line: str) -> str | None:
    """The host in a shell prompt (`me@node7:~$ nvidia-smi`), or None."""
    match = _PROMPT_HOST.match(line)
    return (match["host"] or match["plain"] or match["other"]) if match else None
