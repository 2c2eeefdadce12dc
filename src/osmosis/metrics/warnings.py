from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from osmosis.records.base import Severity
from osmosis.records.run.plan import NO_MODEL, SMOLLM2
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import AnswerIssue, Category, Message

_CAUSES = (
    (Category.TIMEOUT, "timed out: the server may be overloaded, or a call blocks its event loop"),
    (Category.SERVER_DIED, "ended with the rollout server: see the log"),
    (Category.RATE_LIMIT, "hit a rate limit: lower the concurrency"),
)
_LITTLE_COVERAGE = 0.95
_MANY_ISSUES = 0.05  # Share of rollouts without a proper answer from which on a mean is misleading


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: Severity
    what: str
    fix: str = ""


def alarms(report: Report | None, model: str, *, over: bool = True) -> list[str]:
    """Yield warnings, the most general first; `over`: the run has ended; `report` is None before the first one."""
    messages = []
    if model.startswith("offline/") and model not in (NO_MODEL, SMOLLM2):
        messages.append(f"{model} is a rule-based stand-in, not a language model.")
    if report is not None and report.completed:
        messages += _lost_to_one_cause(report)
        primary = report.primary
        if primary and primary.scored >= 8 and primary.max == primary.min == 0:
            messages.append("Every score so far is 0: open a rollout and check the grader and the answer's format.")
        for issue in report.answer_issues:
            if issue.count >= max(2, _MANY_ISSUES * report.succeeded):
                answers = f"{issue.count} of {report.succeeded} answers were {issue.kind}"
                messages.append(f"{answers}: their scores count like all others.")
        if over and report.coverage < _LITTLE_COVERAGE:
            share = f"{report.coverage * 100:.0f} %"
            messages.append(f"Only {share} of the rollouts have a score; interpret the means with care.")
    return messages


def _lost_to_one_cause(report: Report) -> Iterator[str]:
    counts: dict[Category, int] = {}
    for failure in report.failures:
        counts[failure.category] = counts.get(failure.category, 0) + failure.count
    for category, text in _CAUSES:
        if counts.get(category, 0) * 2 >= report.completed >= 4:
            yield f"{counts[category]} of {report.completed} rollouts {text}."


MEANING: dict[AnswerIssue, str] = {
    "filtered": "The provider's content filter cut or withheld the answer.",
    "refused": "The model refused to answer.",
    "truncated": "The answer ended at the limit of tokens.",
    "empty": "The last message has no text and calls no tool.",
}
_FINISH_REASONS: dict[str, AnswerIssue] = {
    "content_filter": "filtered",
    "safety": "filtered",
    "refusal": "refused",
    "length": "truncated",
    "max_tokens": "truncated",
}


def issue_of_reason(finish_reason: str | None) -> AnswerIssue | None:
    return _FINISH_REASONS.get(finish_reason.lower()) if finish_reason else None


def answer_issue(messages: Sequence[Message], finish_reason: str | None) -> AnswerIssue | None:
    issue = issue_of_reason(finish_reason)
    if issue is not None:
        return issue
    for last in reversed(messages):
        if last.get("role") == "assistant":
            if last.get("refusal"):
                return "refused"
            return "empty" if _blank(last.get("content")) and not last.get("tool_calls") else None
    return None


def _blank(content: object) -> bool:
    if type(content) is str:
        return not content or content.isspace()
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        return not any(part.get("type") != "text" or str(part.get("text") or "").strip() for part in parts)
    return content is None or (isinstance(content, str) and not content.strip())


Curve = Sequence[tuple[int, float]]

LASTING = 3  # Steps that a sign has to last
NO_SIGNAL = 0.9
FAILED = 0.5
TRUNCATED = 0.3
COLLAPSED = 0.2
LONGER = 2.0
REPEATED = 0.3
LEARNED = 0.02
MISMATCH = 0.1
SPIKE = 20
FALLEN = 0.05


def training_alarms(curves: Mapping[str, Curve]) -> list[str]:
    signs = (_fidelity, _signal, _entropy, _mismatch, _truncation, _sealed, _hacking)
    return [text for sign in signs for text in sign(curves)]


def _fidelity(curves: Mapping[str, Curve]) -> Iterator[str]:
    wrong = sum(value for key in ("fidelity/twice", "fidelity/lost") for _, value in curves.get(key, ()))
    if wrong:
        sign = f"{wrong:.0f} sampled tokens are in two sequences or in none"
        yield f"{sign}: this is a bug in osmosis, report it with the run's log."
    trained, unscored = dict(curves.get("train/trained_tokens", ())), dict(curves.get("fidelity/unscored_tokens", ()))
    sampled = curves.get("fidelity/sampled_tokens", ())
    missing = sum(value - trained[step] - unscored.get(step, 0) for step, value in sampled if step in trained)
    if missing:
        yield f"{missing:.0f} sampled tokens of rollouts with a reward were not trained on: report this as a bug."


def _mismatch(curves: Mapping[str, Curve]) -> Iterator[str]:
    apart = _ends(curves, "train/mismatch_mean")[1]
    if apart and min(apart) > MISMATCH:
        sign = f"Sampler and trainer differ by {_mean(apart):.2g} nats a token: importance weights correct some of it"
        yield f"{sign}. Use the same precision and chat template for both, or a newer server."
    norms = [value for _, value in curves.get("train/grad_norm", ())]
    before = sorted(norms[:-1])
    if len(before) >= 2 * LASTING and norms[-1] > SPIKE * before[len(before) // 2] > 0:
        sign = f"The gradient of the last step is {norms[-1] / before[len(before) // 2]:.0f} times the usual"
        yield f"{sign}: look at its rollouts, lower lr or set ratio_max."


def _signal(curves: Mapping[str, Curve]) -> Iterator[str]:
    failed = _ends(curves, "rollout/failed_ratio")[1]
    if failed and min(failed) >= FAILED:
        sign = f"{_percent(failed)} of the rollouts of the last {LASTING} steps have no reward"
        yield f"{sign}: open one and see why; failed rollouts teach nothing."
    silent = _ends(curves, "rollout/no_signal_ratio")[1]
    if silent and min(silent) >= NO_SIGNAL:
        sign = f"In {_percent(silent)} of the rows of the last {LASTING} steps all attempts have the same reward"
        advice = "use rows of mixed difficulty, a finer reward, or more samples per row"
        yield f"{sign}, so nothing is learned from them: {advice}."


def _entropy(curves: Mapping[str, Curve]) -> Iterator[str]:
    first, last = _ends(curves, "train/entropy_loss")
    if first and last and _mean(first) > 0 and max(last) < COLLAPSED * _mean(first):
        sign = f"The entropy has fallen from {_mean(first):.3g} to {_mean(last):.3g}: the model no longer explores"
        yield f"{sign}. Lower lr, raise clip_high or kl, or stop at an earlier checkpoint."


def _truncation(curves: Mapping[str, Curve]) -> Iterator[str]:
    first, last = _ends(curves, "rollout/truncated_ratio")
    if last and min(last) >= TRUNCATED:
        rising = " and rising" if first and _mean(last) > 1.5 * _mean(first) else ""
        sign = f"{_percent(last)} of the rollouts of the last {LASTING} steps were cut off{rising}"
        yield f"{sign}: raise max_response_length, or reward shorter answers."


def _sealed(curves: Mapping[str, Curve]) -> Iterator[str]:
    sealed, validation = curves.get("eval/sealed", ()), dict(curves.get("eval/validation/reward", ()))
    if len(sealed) < 2 or not {step for step, _ in sealed} <= validation.keys():
        return
    (step, best), (last_step, last) = max(sealed, key=lambda point: point[1]), sealed[-1]
    before, after = validation[step], validation[last_step]
    if last < best - FALLEN and after > before + LEARNED:
        yield (
            f"Since step {step} the validation reward has risen from {before:.3g} to {after:.3g} and the sealed "
            f"grader's score has fallen from {best:.3g} to {last:.3g}: the model learns to please the reward. Read "
            "rollouts, change the reward, and use no checkpoint after that step."
        )


def _hacking(curves: Mapping[str, Curve]) -> Iterator[str]:
    first, last = _ends(curves, "rollout/response_lengths")
    if first and last and min(last) > LONGER * _mean(first) and not _validated(curves):
        sign = f"Answers have grown from {_mean(first):.0f} to {_mean(last):.0f} tokens"
        yield f"{sign} while the validation reward has not risen: read some, the reward may pay for length."
    first, last = _ends(curves, "rollout/repetition_ratio")
    if first and last and min(last) > REPEATED and _mean(last) > 2 * _mean(first):
        sign = f"Answers repeat themselves more and more ({_percent(last)} of their word groups)"
        yield f"{sign}: read some, the reward may pay for repetition."


def _validated(curves: Mapping[str, Curve]) -> bool:
    validation = [value for _, value in curves.get("eval/validation/reward", ())]
    if len(validation) >= 2:
        return validation[-1] > validation[0] + LEARNED
    first, last = _ends(curves, "rollout/raw_reward")
    return bool(first and last and _mean(last) > _mean(first) + LEARNED)


def _ends(curves: Mapping[str, Curve], key: str) -> tuple[list[float], list[float]]:
    values = [value for _, value in curves.get(key, ())]
    first = values[:LASTING] if len(values) >= 2 * LASTING else []
    return first, values[-LASTING:] if len(values) >= LASTING else []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percent(values: Sequence[float]) -> str:
    return f"{_mean(values) * 100:.0f} %"
