import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osmosis.datasets.scan import read_rows
from osmosis.records.run.rows import Row

NGRAM = 13
"""Words that two texts share by copying, not by chance (Brown et al. 2020, "Language models are few-shot learners",
appendix C)."""
SHARE = 0.5  # Share of a row's n-grams that another text must have
TEMPLATE_ROWS = 0.01
"""Share of rows from which on an n-gram is the dataset's own wording, at least `LEAST_ROWS` of them."""
LEAST_ROWS = 10
_WORD = re.compile(r"\w+")

Kind = Literal["empty", "duplicate", "contradiction", "overlap"]
Place = tuple[str, int | None]  # file and row; a text with examples has no rows


@dataclass(frozen=True)
class Flaw:
    kind: Kind
    file: str
    row: int
    other_file: str | None = None
    other_row: int | None = None
    share: float | None = None  # share of the row's n-grams that the other text has
    text: str = ""


def find_flaws(files: Sequence[Path], examples: Mapping[str, str] | None = None) -> Iterator[Flaw]:
    """Yield the flaws of these files, each against those before it; `examples` are few-shot prompts, by name. Prompts
    that differ in case and punctuation alone are duplicates, those that share half of their 13-grams overlap."""
    counts: Counter[int] = Counter()
    rows = 0
    for path in files:
        for row in read_rows(path, skip_bad=True):
            counts.update(_ngrams(_words(_prompt(row))))
            rows += 1
    common = {ngram for ngram, count in counts.items() if count > max(LEAST_ROWS, TEMPLATE_ROWS * rows)}
    first: dict[tuple[str, ...], tuple[Place, str | None]] = {}
    origin: dict[int, Place] = {}
    for name, text in (examples or {}).items():
        origin.update(dict.fromkeys(_ngrams(_words(text)), (name, None)))
    for path in files:
        fresh: dict[int, Place] = {}
        for row in read_rows(path, skip_bad=True):
            place, text = (path.name, row.index), _prompt(row)
            words, answer = _words(text), row.ground_truth
            if not words or (answer is not None and not answer.strip()):
                yield Flaw("empty", *place, text=text)
                continue
            if (earlier := first.get(words)) is not None:
                (other, other_row), other_answer = earlier
                kind: Kind = "duplicate" if other_answer == answer else "contradiction"
                yield Flaw(kind, *place, other, other_row, text=text)
                continue
            first[words] = place, answer
            ngrams = _ngrams(words) - common
            shared = Counter(origin[ngram] for ngram in ngrams if ngram in origin)
            for (other, other_row), count in shared.most_common(1):
                if count >= SHARE * len(ngrams):
                    yield Flaw("overlap", *place, other, other_row, count / len(ngrams), text)
            fresh.update(dict.fromkeys(ngrams, place))
        origin |= fresh


def _prompt(row: Row) -> str:
    contents = [message.get("content") for message in row.messages() if message.get("role") == "user"]
    return "\n".join(content if isinstance(content, str) else str(content or "") for content in contents)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _ngrams(words: tuple[str, ...]) -> set[int]:
    return {hash(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)}
