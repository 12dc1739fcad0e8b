"""Pasted text into plain lines: encodings, colours, markup and table borders taken off, nothing else."""

from __future__ import annotations

import html
import re

_COLOUR = re.compile(
    r"(?:\x1b|\^\[|\u2190|\u241b|\\u001b|\\x1b|\\033|\\e)?\[[0-9;]{0,8}m|\x1b\[[0-9;?]*[A-Za-z]"
)
_BREAK = re.compile(r"<br\s*/?>|</tr>|</p>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]{0,12}(?:\s[^<>\n]{0,80})?>")
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\x00]")
# Borders of pasted tables, and quotes of CSV and JSON, stand between cells.
_BORDER = re.compile("[|\u2502\u2503\u2551\"`*]|'(?=[A-Z ])|(?<=[A-Z0-9 ])'")
_ESCAPED = re.compile(r"\\t\s*GPU\d|\\n\s*GPU\d")
_NAMED_GPU = re.compile(
    r"^\W*GPU (\d{1,3}(?:,\d{1,3})*)\s*: (\S[^(\n]*?)\s*(?:\(UUID: (GPU-[0-9A-Fa-f-]{36})\)|$)"
)
_NIC_NAME = re.compile(r"\bNIC(\d{1,3})\s*[:=]\s*([A-Za-z][\w.\-]*\d[\w.\-]*)\s*$")


def plain_lines(content: bytes | str) -> list[str]:
    """The lines of a paste. Bytes are UTF-8, or UTF-16 as PowerShell's redirection writes."""
    text = _decode(content) if isinstance(content, bytes) else content
    if _ESCAPED.search(text):  # a string as JSON or a program's repr shows it
        text = text.replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")
    text = _COLOUR.sub(" ", text)
    text = html.unescape(_TAG.sub(" ", _BREAK.sub("\n", text)))
    text = _INVISIBLE.sub("", text.replace("\u00a0", " ").replace("\r\n", "\n").replace("\r", "\n"))
    return [_BORDER.sub(" ", line).rstrip(" \n") for line in text.split("\n")]


def _decode(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if content.count(b"\x00") > len(content) // 4:  # UTF-16 whose mark was lost
        is_little = content[1::2].count(b"\x00") >= content[::2].count(b"\x00")
        return content.decode("utf-16-le" if is_little else "utf-16-be", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def nic_names(lines: list[str]) -> dict[str, str]:
    """`NIC0: mlx5_0` lines: label → name; a label that two lines name differently is left out."""
    names: dict[str, str] = {}
    unclear = set()
    for line in lines:
        found = _NIC_NAME.search(line)
        if found is None:
            continue
        label = f"NIC{found[1]}"
        if names.setdefault(label, found[2]) != found[2]:
            unclear.add(label)
    return {label: name for label, name in names.items() if label not in unclear}


def gpu_names(lines: list[str]) -> dict[int, tuple[str, str | None]]:
    """`GPU 0: NVIDIA A100 (UUID: …)` lines, as `nvidia-smi -L` and torch's collect_env print them."""
    names: dict[int, tuple[str, str | None]] = {}
    unclear = set()
    for line in lines:
        found = _NAMED_GPU.match(line)
        if found is None or not re.search(r"[A-Za-z]{2}", found[2]) or "Compute Cap" in found[2]:
            continue
        for number in map(int, found[1].split(",")):
            named = (found[2], found[3])
            if names.setdefault(number, named)[0] != named[0]:
                unclear.add(number)
    return {number: named for number, named in names.items() if number not in unclear}
