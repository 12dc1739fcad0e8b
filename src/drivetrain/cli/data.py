"""`drivetrain data`: data into the form that training reads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from drivetrain.spec.errors import InputError


@click.group(name="data", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Prepare data for training."""


@command.command(
    name="prepare", context_settings={"token_normalize_func": lambda name: name.replace("_", "-")}
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--text", "is_text", is_flag=True, help="The files are text, each of them a document.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The token file.")
@click.option(
    "--tokenizer",
    default="bytes",
    show_default=True,
    metavar="NAME",
    help="bytes, the path of a Hugging Face tokenizer.json, or tiktoken:ENCODING.",
)
@click.option("--separator", metavar="TOKEN", help="Between documents, if not the tokenizer's usual one.")
@click.option("--glob", "pattern", default="*", metavar="PATTERN", help="Which files of folders: '*.txt'.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def prepare(
    paths: tuple[Path, ...],
    is_text: bool,
    output: Path,
    tokenizer: str,
    separator: str | None,
    pattern: str,
    as_json: bool,
) -> None:
    """Make PATHS, text files or folders of them, into one token file.

    \b
    drivetrain data prepare --text corpus/ -o corpus.tokens
    drivetrain train gpt --data.path corpus.tokens
    """
    if not is_text:
        raise InputError("data prepare", "what the files hold is not said", "add --text")
    from drivetrain.data.text_files import find_text_files, prepare_text
    from drivetrain.data.tokenizers import open_tokenizer

    files = find_text_files(paths, pattern=pattern)
    done = prepare_text(files, output, open_tokenizer(tokenizer, separator=separator))
    if as_json:
        left_out = {"binary": done.num_binary, "empty": done.num_empty}
        click.echo(json.dumps({"path": str(done.path), **dataclasses.asdict(done.header), **left_out}))
        return
    header = done.header
    click.echo(
        f"{done.path}: {header.num_tokens:,} tokens in {header.num_documents:,} documents"
        f" ({header.tokenizer}, vocabulary {header.vocab_size:,}), {header.file_bytes / 1e6:.1f} MB"
    )
    if done.num_binary or done.num_empty:
        click.echo(f"left out: {done.num_binary} binary files, {done.num_empty} empty ones")
