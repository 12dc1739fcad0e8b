"""Fingerprints change when the data set does, and say how."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from drivetrain.data.fingerprint import explain_change, fingerprint
from drivetrain.data.image_folder import ImageFolderDataset, scan
from drivetrain.data.labels import CheckedLabels
from drivetrain.data.synthetic import SyntheticImages


def folder(root: Path) -> ImageFolderDataset:
    return ImageFolderDataset(scan(root, "train", val_fraction=0.0))


def test_files_added_removed_renamed_or_changed_change_it(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "cat").mkdir(parents=True)
    for number in range(5):
        (root / "cat" / f"{number}.jpg").write_bytes(b"x")
    seen = [fingerprint(folder(root))]

    (root / "cat" / "5.jpg").write_bytes(b"x")
    seen.append(fingerprint(folder(root)))
    assert explain_change(seen[0], seen[1]) == "the data set had 5 samples and now has 6: at least 1 more"

    (root / "cat" / "0.jpg").unlink()
    (root / "cat" / "1.jpg").unlink()
    seen.append(fingerprint(folder(root)))
    assert explain_change(seen[1], seen[2]) == "the data set had 6 samples and now has 4: at least 2 fewer"

    (root / "cat" / "2.jpg").rename(root / "cat" / "9.jpg")
    seen.append(fingerprint(folder(root)))
    assert "files were renamed, replaced or changed" in explain_change(seen[2], seen[3])

    (root / "cat" / "9.jpg").write_bytes(b"longer")
    seen.append(fingerprint(folder(root)))
    assert len(set(seen)) == len(seen)


def test_moving_the_whole_folder_or_checking_labels_does_not_change_it(tmp_path: Path) -> None:
    (tmp_path / "a/cat").mkdir(parents=True)
    (tmp_path / "a/cat/1.jpg").write_bytes(b"x")
    before = fingerprint(folder(tmp_path / "a"))
    assert fingerprint(CheckedLabels(folder(tmp_path / "a"), 1)) == before
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert fingerprint(folder(tmp_path / "b")) == before
    assert explain_change(before, before) == "the data set is unchanged"


def test_other_data_sets_go_by_type_length_and_their_own_word() -> None:
    class Mine(list[int]):
        fingerprint = "first"

    assert fingerprint(Mine([1, 2])) == fingerprint(Mine([3, 4]))
    assert fingerprint(Mine([1, 2])) != fingerprint(Mine([1, 2, 3]))
    before = fingerprint(Mine([1, 2]))
    Mine.fingerprint = "second"
    assert fingerprint(Mine([1, 2])) != before
    assert "content changed" in explain_change(before, fingerprint(Mine([1, 2])))
    other = fingerprint(SyntheticImages(size=2, num_classes=2, num_samples=2))
    assert "was Mine with 2 samples and is now SyntheticImages" in explain_change(before, other)


def test_modules_said_to_be_free_of_torch_import_none() -> None:
    names = [
        "permutation",
        "position",
        "draw",
        "workers",
        "image_index",
        "image_folder",
        "decode",
        "fingerprint",
        "bad_samples",
    ]
    imports = "; ".join(f"import drivetrain.data.{name}" for name in names)
    check = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0
