"""A base model in a folder of `save_pretrained`: safetensors only, as other weights and Python files run code."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from osmosis.errors import ValidationError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BELONGS = re.compile(
    r"^(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config"
    r"|processor_config|chat_template|response_template)\.json$|^(merges|vocab)\.txt$|^chat_template\.jinja$"
    r"|^(tokenizer|spiece|sentencepiece[\w.]*)\.model$|^(?!optimizer\.)[\w.-]+\.safetensors$|^[\w.-]+\.safetensors\.index\.json$"
)
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
MAX_FILES = 500
MAX_TEXT_BYTES = 64 << 20  # bytes of one file that is not weights
MAX_HEADER_BYTES = 100 << 20
MAX_BYTES = 2_000_000_000_000


@dataclass(frozen=True, slots=True)
class FolderFacts:
    architecture: str
    parameters: int
    context_length: int | None
    chat_template: bool
    size: int


def is_model_file(name: str) -> bool:
    return BELONGS.match(name) is not None


def list_model_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValidationError(f"{folder} is not a folder", hint="name the folder that save_pretrained wrote")
    present = [path for path in sorted(folder.iterdir()) if path.is_file()]
    files = [path for path in present if is_model_file(path.name)]
    if not any(path.name == CONFIG for path in files):
        problem = f"{folder} holds no model: it has no {CONFIG}"
        raise ValidationError(problem, hint="name the folder that save_pretrained wrote")
    if not any(path.suffix == ".safetensors" for path in files):
        other = next((path.name for path in present if path.suffix in OTHER_WEIGHTS), None)
        reason = f"{other} is of another kind" if other else "there are none"
        fix = "save it again: model.save_pretrained(FOLDER), which writes safetensors"
        raise ValidationError(f"{folder}: weights must be safetensors files; {reason}", hint=fix)
    return files


def check_model(folder: Path) -> FolderFacts:
    files = {path.name: path for path in list_model_files(folder)}
    size = sum(path.stat().st_size for path in files.values())
    if len(files) > MAX_FILES or size > MAX_BYTES:
        raise ValidationError(f"{folder}: too large for a model: {len(files)} files, {size} bytes")
    for path in files.values():
        if path.suffix != ".safetensors" and path.stat().st_size > MAX_TEXT_BYTES:
            raise ValidationError(f"{path.name} has more than {MAX_TEXT_BYTES >> 20} MB", hint="remove it")
    config = _json(files[CONFIG])
    architectures = config.get("architectures")
    if not isinstance(config.get("model_type"), str) or not isinstance(architectures, list) or not architectures:
        problem = f"{CONFIG} names no model_type and architectures, so no library knows how to load it"
        raise ValidationError(problem, hint="save the model with save_pretrained of a recent transformers")
    if not any(name in files for name in TOKENIZERS):
        fix = "tokenizer.save_pretrained(FOLDER), into the same folder"
        raise ValidationError(f"{folder} has no tokenizer ({', '.join(TOKENIZERS)})", hint=fix)
    weights = [path for name, path in files.items() if name.endswith(".safetensors")]
    if INDEX in files:
        placed = _json(files[INDEX]).get("weight_map")
        named = {str(name) for name in placed.values()} if isinstance(placed, dict) else set()
        if missing := sorted(named - files.keys()):
            raise ValidationError(f"{missing[0]}, which {INDEX} names, is missing", hint="copy all files of the model")
        weights = [files[name] for name in named]
    templated = "chat_template.jinja" in files or "chat_template.json" in files
    if not templated and "tokenizer_config.json" in files:
        templated = bool(_json(files["tokenizer_config.json"]).get("chat_template"))
    length = _context_length(config)
    return FolderFacts(str(architectures[0]), sum(map(count_parameters, weights)), length, templated, size)


def check_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in TOKENIZERS):
        fix = "tokenizer.save_pretrained(FOLDER)"
        raise ValidationError(f"{folder} has no tokenizer ({', '.join(TOKENIZERS)})", hint=fix)


def _context_length(config: dict[str, object]) -> int | None:
    inner = config.get("text_config")
    for table in (config, inner if isinstance(inner, dict) else {}):
        if isinstance(length := table.get("max_position_embeddings"), int):
            return length
    return None


def count_parameters(path: Path) -> int:
    """Count the numbers in a safetensors file by its header: JSON with the shape of each tensor, its length in the
    first eight bytes (https://github.com/huggingface/safetensors). Raise ValidationError when the file is broken."""
    file_size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, file_size - 8):
            raise _broken(path)
        try:
            tensors = [tensor for name, tensor in json.loads(file.read(length)).items() if name != "__metadata__"]
            ends = [int(tensor["data_offsets"][1]) for tensor in tensors]
            count = sum(math.prod(int(size) for size in tensor["shape"]) for tensor in tensors)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise _broken(path) from None
    if 8 + length + max(ends, default=0) != file_size:
        raise _broken(path)
    return count


def _broken(path: Path) -> ValidationError:
    return ValidationError(f"{path.name} is not a complete safetensors file", hint="copy or download it again")


def _json(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ValidationError(f"{path.name} is not a JSON object", hint="copy or download it again")
    return document


def check_name(name: str) -> None:
    if PurePosixPath(name).name != name or not is_model_file(name):
        raise ValidationError(f"{name!r} is not a file of a model", hint="send safetensors, config and tokenizer files")
