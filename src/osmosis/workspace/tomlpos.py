"""Lines of keys in a TOML file, for messages only: on anything unexpected a line is unknown."""

import re

Positions = dict[tuple[str, ...], int]
_KEY = re.compile(r"[ \t]*(?:([A-Za-z0-9_-]+)|\"((?:[^\"\\\n]|\\.)*)\"|'([^'\n]*)')[ \t]*")
_STRINGS = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)


def find_lines(text: str) -> Positions:
    """Map the path of each key and table to its 1-based line. Entries of `[[x]]` are `("x", "0")`, `("x", "1")`, ..."""
    lines: Positions = {}
    counts: dict[tuple[str, ...], int] = {}
    prefix: tuple[str, ...] = ()
    at, size = 0, len(text)
    line, scanned = 1, 0
    while at < size:
        at = _skip_blank(text, at)
        if at >= size:
            break
        line += text.count("\n", scanned, at)
        scanned = at
        if text[at] == "[":
            double = text.startswith("[[", at)
            keys, after = _keys(text, at + (2 if double else 1))
            prefix = _entered(keys, counts, double) if keys else prefix
            lines.setdefault(prefix, line)
            lines.setdefault(keys, line)
            at = _line_end(text, after)
            continue
        keys, after = _keys(text, at)
        if not keys or not text.startswith("=", after):
            at = _line_end(text, at)
            continue
        for depth in range(1, len(keys) + 1):
            lines.setdefault((*prefix, *keys[:depth]), line)
        at = _value_end(text, after + 1)
    return lines


def find_line(found: Positions, key: str) -> int | None:
    parts = tuple(key.split("."))
    while parts:
        if parts in found:
            return found[parts]
        parts = parts[:-1]
    return None


def _entered(keys: tuple[str, ...], counts: dict[tuple[str, ...], int], double: bool) -> tuple[str, ...]:
    if not double:
        return keys
    number = counts.get(keys, 0)
    counts[keys] = number + 1
    return (*keys, str(number))


def _skip_blank(text: str, at: int) -> int:
    while at < len(text):
        if text[at] in " \t\r\n\ufeff":
            at += 1
        elif text[at] == "#":
            at = _line_end(text, at)
        else:
            break
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _keys(text: str, at: int) -> tuple[tuple[str, ...], int]:
    keys: list[str] = []
    while match := _KEY.match(text, at):
        keys.append(next(g for g in match.groups() if g is not None))
        at = match.end()
        if not text.startswith(".", at):
            break
        at += 1
    return tuple(keys), at


def _value_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "\"'#":
            match = _STRINGS.match(text, at)
            at = match.end() if match else at + 1
            continue
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "\n" and depth <= 0:
            return at + 1
        at += 1
    return at
