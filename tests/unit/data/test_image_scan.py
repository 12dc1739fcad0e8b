"""Which files a folder gives, and what is refused."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drivetrain.data.image_scan import scan, scan_both
from drivetrain.spec.errors import InputError


def make(root: Path, *files: str) -> Path:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (len(file) + 1))
    return root


def test_train_and_val_folders_share_the_classes_of_train(tmp_path: Path) -> None:
    make(
        tmp_path, "train/dog/2.jpg", "train/cat/1.JPEG", "train/dog/10.png", "val/dog/v.jpg", "val/cat/v.webp"
    )
    train, val = scan(tmp_path, "train"), scan(tmp_path, "val")
    assert train.classes == val.classes == ("cat", "dog")
    assert list(train.relative_paths()) == ["cat/1.JPEG", "dog/10.png", "dog/2.jpg"]
    assert [train.label(index) for index in range(3)] == [0, 1, 1]
    assert train.path(1) == str(tmp_path / "train/dog/10.png")
    assert list(val.relative_paths()) == ["cat/v.webp", "dog/v.jpg"]
    assert train.count_per_class().tolist() == [1, 2]
    assert train.sizes_bytes().tolist() == [17, 17, 16]
    with pytest.raises(IndexError):
        train.path(3)


def test_one_folder_is_split_by_path_and_added_files_move_no_other(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(300)))
    val = set(scan(tmp_path, "val", val_fraction=0.2).relative_paths())
    train = set(scan(tmp_path, "train", val_fraction=0.2).relative_paths())
    assert len(train) + len(val) == 600
    assert not train & val
    assert 80 < len(val) < 160
    make(tmp_path, *(f"cat/new{number}.jpg" for number in range(100)))
    assert val < set(scan(tmp_path, "val", val_fraction=0.2).relative_paths())
    assert train < set(scan(tmp_path, "train", val_fraction=0.2).relative_paths())
    assert len(scan(tmp_path, "train", val_fraction=0.0)) == 700
    assert val > set(scan(tmp_path, "val").relative_paths()) - {
        f"cat/new{number}.jpg" for number in range(100)
    }


def test_subfolders_and_links_are_followed_and_the_rest_is_told(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "b.jpg")
    root = make(tmp_path / "data", "train/cat/deep/a.jpg", "train/cat/notes.txt", "train/.cache/x.jpg")
    (root / "train/cat/linked").symlink_to(tmp_path / "elsewhere")
    (root / "train/cat/up").symlink_to(root / "train/cat")
    (root / "train/cat/folder.jpg").mkdir()
    index = scan(root, "train")
    assert index.classes == ("cat",)
    assert list(index.relative_paths()) == ["cat/deep/a.jpg", "cat/linked/b.jpg"]
    assert index.notes == (
        f"1 files in {root / 'train'} are left out: their names do not end as an image's",
        f"1 links in {root / 'train'} are left out: they lead back to a folder above, such as cat/up",
    )


def test_links_back_up_bring_no_images_of_other_classes_or_of_val(tmp_path: Path) -> None:
    root = make(tmp_path / "data", "train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "val/b/4.jpg")
    make(tmp_path / "data/train", "a/deep/5.jpg")
    make(tmp_path, "other/6.jpg")
    for number, target in enumerate([root, root / "train", tmp_path, root / "train/a"]):
        (root / f"train/a/deep/up{number}").symlink_to(target)
    (root / "train/around").symlink_to(root)
    train, val = scan_both(root)
    assert train.classes == ("a", "b")
    assert list(train.relative_paths()) == ["a/1.jpg", "a/deep/5.jpg", "b/2.jpg"]
    assert list(val.relative_paths()) == ["a/3.jpg", "b/4.jpg"]
    assert "5 links" in train.notes[0]
    assert val.notes == ()


def test_two_folders_that_link_to_each_other_are_read_once_each(tmp_path: Path) -> None:
    root = make(tmp_path / "data", "train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg")
    make(tmp_path / "out", "x/7.jpg", "y/8.jpg")
    (tmp_path / "out/x/to_y").symlink_to(tmp_path / "out/y")
    (tmp_path / "out/y/to_x").symlink_to(tmp_path / "out/x")
    (root / "train/a/x").symlink_to(tmp_path / "out/x")
    index = scan(root, "train")
    assert list(index.relative_paths()) == ["a/1.jpg", "a/x/7.jpg", "a/x/to_y/8.jpg", "b/2.jpg"]
    assert index.notes[0].endswith("back to a folder above, such as a/x/to_y/to_x")


def test_a_data_set_behind_a_link_is_the_same_data_set(tmp_path: Path) -> None:
    root = make(tmp_path / "disk/data", "train/a/1.jpg", "train/b/2.jpg")
    (tmp_path / "link").symlink_to(root)
    (root / "train/a/up").symlink_to(tmp_path / "link")
    (root / "train/a/way").symlink_to(tmp_path)
    index = scan(tmp_path / "link", "train")
    assert list(index.relative_paths()) == ["a/1.jpg", "b/2.jpg"]
    assert index.path(0) == str(tmp_path / "link/train/a/1.jpg")


def test_links_to_themselves_or_to_nothing_are_left_out_with_a_note(tmp_path: Path) -> None:
    root = make(tmp_path, "train/a/1.jpg", "train/b/2.jpg")
    for name in ("train/a/self", "train/a/self.jpg", "train/round"):
        (root / name).symlink_to(root / name)
    (root / "train/a/gone.jpg").symlink_to("nowhere.jpg")
    index = scan(root, "train")
    assert index.classes == ("a", "b")
    assert list(index.relative_paths()) == ["a/1.jpg", "b/2.jpg"]
    (note,) = index.notes
    assert note.startswith(f"4 links in {root / 'train'} are left out: they lead nowhere, such as ")


def test_one_folder_is_read_once_for_both_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(50)))
    read: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (read.append(Path(path).name), scandir(path))[1])
    train, val = scan_both(tmp_path, val_fraction=0.3)
    assert sorted(read) == sorted([tmp_path.name, "cat", "dog"])
    assert list(train.relative_paths()) == list(scan(tmp_path, "train", val_fraction=0.3).relative_paths())
    assert list(val.relative_paths()) == list(scan(tmp_path, "val", val_fraction=0.3).relative_paths())
    assert len(train) + len(val) == 100


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    (tmp_path / "train/cat").mkdir(parents=True)
    raw = os.fsencode(tmp_path / "train/cat") + b"/\xff\xe9.jpg"
    Path(os.fsdecode(raw)).write_bytes(b"x")
    index = scan(tmp_path, "train")
    assert os.fsencode(index.path(0)) == raw
    assert index.sizes_bytes().tolist() == [1]


def _no_folder(root: Path) -> str:
    return "no such folder"


def _file(root: Path) -> str:
    root.write_bytes(b"x")
    return "it is a file"


def _broken_link(root: Path) -> str:
    root.symlink_to("nowhere")
    return "link to nothing"


def _empty(root: Path) -> str:
    root.mkdir()
    return "the folder is empty"


def _no_class_folders(root: Path) -> str:
    make(root, "train/1.jpg")
    return "no class folders, only files such as 1.jpg"


def _empty_class(root: Path) -> str:
    make(root, "train/cat/1.jpg")
    (root / "train/dog").mkdir()
    return "it is empty; the model would have a class that it cannot learn"


def _class_without_images(root: Path) -> str:
    make(root, "train/cat/1.jpg", "train/dog/1.txt")
    return "it holds only other files, such as dog/1.txt"


def _only_val(root: Path) -> str:
    make(root, "val/cat/1.jpg")
    return "there is no folder train/ in it, only val/"


@pytest.mark.parametrize(
    "prepare",
    [
        _no_folder,
        _file,
        _broken_link,
        _empty,
        _no_class_folders,
        _empty_class,
        _class_without_images,
        _only_val,
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path: Path, prepare: Callable[[Path], str]) -> None:
    root = tmp_path / "data"
    found = prepare(root)
    with pytest.raises(InputError) as caught:
        scan(root, "train")
    assert found in caught.value.found
    assert str(root) in caught.value.asked
    assert caught.value.do


def test_a_class_only_in_val_is_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.jpg", "val/cat/1.jpg", "val/dgo/1.jpg")
    assert len(scan(tmp_path, "train")) == 1
    with pytest.raises(InputError, match="the class folder dgo is in val/ but not in train/"):
        scan(tmp_path, "val")


def test_a_missing_val_folder_says_what_is_there(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.jpg", "validation/cat/1.jpg")
    with pytest.raises(InputError, match=r"no folder val/ in it, only train/, validation/"):
        scan(tmp_path, "val")


def test_a_class_without_val_images_is_a_note(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "train/eel/1.jpg", "val/cat/1.jpg", "val/eel/x.txt")
    index = scan(tmp_path, "val")
    assert index.classes == ("cat", "dog", "eel")
    assert index.count_per_class().tolist() == [1, 0, 0]
    assert "no val image" in index.notes[1]
    assert "dog, eel" in index.notes[1]


def test_a_fraction_beside_split_folders_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.jpg", "val/cat/1.jpg")
    with pytest.raises(InputError, match="already has train/ and val/"):
        scan(tmp_path, "train", val_fraction=0.1)
    with pytest.raises(InputError, match="it is a share"):
        scan(tmp_path / "train", "train", val_fraction=1.5)
    with pytest.raises(InputError, match="none of the images"):
        scan(tmp_path / "train", "val", val_fraction=0.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights for a moment, so it needs them")
def test_an_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path, "train/cat/1.jpg")
    (root / "train/cat").chmod(0)
    monkeypatch.chdir(root)
    # Relative, since others may not pass through pytest's folders.
    root.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            scan("train", "train", val_fraction=0.0)
    finally:
        os.seteuid(0)


def test_an_index_is_small_and_quick(tmp_path: Path) -> None:
    names = [f"class{number:02d}" for number in range(20)]
    for name in names:
        (tmp_path / name).mkdir()
        for number in range(500):
            (tmp_path / name / f"image_{number:05d}.jpg").touch()
    started = time.perf_counter()
    tracemalloc.start()
    index = scan(tmp_path, "train", val_fraction=0.0)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(index) == 10_000
    assert kept / len(index) < 60  # a name of 23 bytes, 8 for its end
    assert time.perf_counter() - started < 5
    assert np.array_equal(index.count_per_class(), np.full(20, 500))
