"""Small data made on the spot, so that public training scripts run without a network.

Text comes from the Python standard library's own sources; images and weights are random under a seed.
What needs Pillow, transformers or tokenizers is made by the Python of the script under test: this file
is also a program, ``python made_data.py images|pairs|language_model ...``, and imports nothing of
flatout's.
"""

from __future__ import annotations

import argparse
import array
import json
import pickle
import random
import sys
import sysconfig
from pathlib import Path


def library_text(limit_bytes: int) -> str:
    """Sources of the standard library in alphabetical order, at most ``limit_bytes`` of them."""
    parts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore").encode("ascii", "ignore").decode()
        parts.append(text)
        size += len(text)
        if size >= limit_bytes:
            break
    return "".join(parts)[:limit_bytes]


def make_tokens(folder: Path, *, limit_bytes: int, vocabulary: int | None) -> None:
    """``train.bin`` and ``val.bin`` of uint16 byte tokens; ``meta.pkl`` where a vocabulary is given."""
    folder.mkdir(parents=True, exist_ok=True)
    data = library_text(limit_bytes).encode()
    cut = len(data) * 9 // 10
    for name, part in (("train", data[:cut]), ("val", data[cut:])):
        (folder / f"{name}.bin").write_bytes(array.array("H", list(part)).tobytes())
    if vocabulary is not None:
        (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary}))


def make_corpus(folder: Path, *, limit_bytes: int) -> None:
    """``train.txt``, ``valid.txt`` and ``test.txt`` of words for a language model."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = library_text(limit_bytes).splitlines(keepends=True)
    cut = len(lines) * 8 // 10
    half = (cut + len(lines)) // 2
    parts = {"train": lines[:cut], "valid": lines[cut:half], "test": lines[half:]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("".join(part), encoding="utf-8")


def make_names(path: Path, *, count: int, seed: int = 0) -> None:
    """One made-up name a line, of 3 to 12 letters."""
    random_ = random.Random(seed)
    consonants, vowels = "bcdfghjklmnprstvwz", "aeiouy"
    lines = []
    for _ in range(count):
        length = random_.randint(3, 12)
        lines.append("".join(random_.choice(vowels if i % 2 else consonants) for i in range(length)))
    path.write_text("\n".join(lines) + "\n")


def _picture(width: int, height: int, random_: random.Random):
    """A blurred random field with some noise, so that JPEG decoding costs what a photograph's does."""
    from PIL import Image

    coarse = Image.frombytes("RGB", (16, 12), random_.randbytes(16 * 12 * 3)).resize((width, height))
    noise = Image.frombytes("RGB", (width, height), random_.randbytes(width * height * 3))
    return Image.blend(coarse, noise, 0.15)


def make_images(folder: Path, *, classes: int, per_class: int, size: int, seed: int = 0) -> None:
    """JPEGs of ``size`` x 3/4 ``size`` in ``train`` and ``val``, one folder a class."""
    random_ = random.Random(seed)
    for split, count in (("train", per_class), ("val", max(2, per_class // 16))):
        for label in range(classes):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                picture = _picture(size, size * 3 // 4, random_)
                picture.save(place / f"{index}.jpg", quality=90)


def make_pairs(folder: Path, *, count: int, width: int, height: int, seed: int = 0) -> None:
    """PNG images in ``imgs`` and two-valued PNG masks of the same size in ``masks``."""
    from PIL import Image

    random_ = random.Random(seed)
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        _picture(width, height, random_).save(folder / "imgs" / f"{index:03}.png")
        mask = Image.new("L", (width, height), 0)
        left, top = random_.randrange(width // 2), random_.randrange(height // 2)
        mask.paste(255, (left, top, left + width // 3, top + height // 3))
        mask.save(folder / "masks" / f"{index:03}.png")


def make_language_model(folder: Path, *, rows: int, hidden: int, layers: int) -> None:
    """``data/train.jsonl`` of prompts and completions, and ``model``: a random Llama with its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    text = library_text(2_000_000)
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 20]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2048, special_tokens=["<pad>", "<eos>"], show_progress=False)
    tokenizer.train_from_iterator(lines[:20_000], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast),
            hidden_size=hidden,
            intermediate_size=hidden * 3,
            num_hidden_layers=layers,
            num_attention_heads=max(2, hidden // 64),
            num_key_value_heads=max(2, hidden // 64),
            max_position_embeddings=2048,
            pad_token_id=fast.pad_token_id,
            eos_token_id=fast.eos_token_id,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder / "model")
    fast.save_pretrained(folder / "model")
    (folder / "data").mkdir(parents=True, exist_ok=True)
    with (folder / "data" / "train.jsonl").open("w", encoding="utf-8") as file:
        for row in range(rows):
            start = row * 7 % (len(lines) - 12)
            file.write(json.dumps({"text": "\n".join(lines[start : start + 3 + row % 8])}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, options in {
        "images": ("classes", "per-class", "size"),
        "pairs": ("count", "width", "height"),
        "language_model": ("rows", "hidden", "layers"),
    }.items():
        made = kinds.add_parser(kind)
        made.add_argument("folder", type=Path)
        for option in options:
            made.add_argument(f"--{option}", type=int, required=True)
    values = vars(parser.parse_args())
    make = {"images": make_images, "pairs": make_pairs, "language_model": make_language_model}
    make[values.pop("kind")](values.pop("folder"), **values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
