"""Figures of training runs, and predictions for one. Only what makes learning impossible refuses: that hardly any group
of attempts at a row can have different rewards, by the upper end of the interval."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from osmosis.base.jsonable import iterate_leaves
from osmosis.base.stats import pass_hat_k
from osmosis.metrics.figures import Figure, Format
from osmosis.metrics.intervals import bounded_interval
from osmosis.metrics.warnings import Curve, Finding
from osmosis.records.api.training import TrainingMetrics
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.report import Interval
from osmosis.records.run.training import TrainingPlan

MANY_FAILED = 0.1
FEW_SIGNAL = 0.2
NO_SIGNAL = 0.05  # Share of groups with signal below which, by the upper end of its interval, nothing can be learned
MANY_TRUNCATED = 0.1
CLOSE_TO_LIMIT = 0.5


@dataclass(frozen=True, slots=True)
class Tried:
    row: str
    reward: float | None
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Gate:
    """Prediction for a training run. Shares are of rollouts; `no_signal` is of rows."""

    rollouts: int
    groups: int  # Rows with at least two scored attempts
    no_signal: float | None  # Absent without such rows
    signal: float | None
    """Share of the training's groups whose rewards will differ; None where every row has one attempt."""
    signal_interval: Interval | None
    mean_reward: float | None
    failed: float | None
    truncated: float | None  # rollouts whose answers fill max_response_length
    p95_s: float | None
    least_s: float | None  # Seconds of all steps, if the rollouts of a step run side by side, without updates
    findings: list[Finding]

    @property
    def hopeless(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


def will_it_train(config: TrainingConfig, plan: TrainingPlan, tried: Sequence[Tried], *, at_once: int | None) -> Gate:
    """Judge whether training can learn; `tried` is empty without an evaluation, `at_once` is its concurrency."""
    scored: dict[str, list[float]] = defaultdict(list)
    for attempt in tried:
        if attempt.reward is not None:
            scored[attempt.row].append(attempt.reward)
    rewards = [reward for group in scored.values() for reward in group]
    groups = [group for group in scored.values() if len(group) > 1]
    silent = sum(1 for group in groups if len(set(group)) == 1) / len(groups) if groups else None
    signal, signal_interval = signal_of(list(scored.values()), config.training.n_samples_per_prompt)
    limit = config.training.max_response_length
    seconds = sorted(attempt.seconds for attempt in tried)
    p95 = seconds[max(0, math.ceil(0.95 * len(seconds)) - 1)] if seconds else None
    gate = Gate(
        rollouts=len(tried),
        groups=len(groups),
        no_signal=silent,
        signal=signal,
        signal_interval=signal_interval,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        failed=1 - len(rewards) / len(tried) if tried else None,
        truncated=sum(1 for attempt in tried if attempt.tokens >= limit) / len(tried) if tried else None,
        p95_s=p95,
        least_s=None if p95 is None else p95 * (plan.steps + plan.validations),
        findings=[],
    )
    gate.findings.extend(_findings(config, plan, gate, rewards, at_once))
    return gate


def will_it_imitate(config: TrainingConfig, plan: TrainingPlan, examples: int) -> Gate:
    findings = []
    if plan.steps == 0:
        problem = f"{examples} rollouts to learn from do not fill one step of rollout_batch_size = {plan.batch}"
        fix = "lower min_score or rollout_batch_size, or name a run with more passed rollouts in from_run"
        findings.append(Finding("too-few-examples", "error", problem, fix))
    return Gate(examples, 0, None, None, None, None, None, None, None, None, findings)


def _findings(
    config: TrainingConfig, plan: TrainingPlan, gate: Gate, rewards: Sequence[float], at_once: int | None
) -> Iterator[Finding]:
    if plan.steps == 0:
        problem = f"{len(plan.rows)} rows do not fill one step of rollout_batch_size = {plan.batch}"
        short = (part for part in plan.environments if len(part.rows) < plan.batch * part.share)
        if len(plan.environments) > 1 and (part := next(short, None)):
            problem += f": {plan.batch * part.share:.3g} of them are of {part.name}, which has {len(part.rows)}"
        fix = f"lower rollout_batch_size to {max(1, plan.largest_batch)} or less, or add rows"
        yield Finding("too-few-rows", "error", problem, fix)
    elif plan.batch < config.training.rollout_batch_size:
        yield Finding("small-dataset", "info", f"a step takes all {plan.batch} rows that the dataset has for training")
    if not gate.rollouts:
        fix = "osmosis train submit --probe 8, or osmosis eval submit with n = 4 in [evaluation]"
        yield Finding("no-eval", "warning", "no evaluation of this rollout and dataset says what to expect", fix)
        return
    if config.advanced.loss != "distill":
        yield from _signal(gate, rewards, config.training.n_samples_per_prompt)
    if gate.truncated and gate.truncated >= MANY_TRUNCATED:
        limit = config.training.max_response_length
        problem = f"{gate.truncated:.0%} of the answers fill max_response_length = {limit}"
        yield Finding("truncated", "warning", problem, "raise max_response_length: what is cut off earns no reward")
    timeout_s = config.training.agent_workflow_timeout_s
    if gate.p95_s and gate.p95_s > CLOSE_TO_LIMIT * timeout_s:
        outcome = f"one rollout in twenty takes more than {gate.p95_s:.0f} s"
        problem = f"{outcome}, and agent_workflow_timeout_s is {timeout_s:.0f}"
        fix = "raise agent_workflow_timeout_s: what runs into it is not learned from"
        yield Finding("slow", "warning", problem, fix)
    if at_once and plan.at_once > 4 * at_once:
        problem = f"a step has {plan.at_once} rollouts at once; the evaluation had {at_once}"
        fix = "make sure that tools and services behind the rollout bear that, or lower rollout_batch_size"
        yield Finding("at-once", "info", problem, fix)


def _signal(gate: Gate, rewards: Sequence[float], size: int) -> Iterator[Finding]:
    if gate.failed == 1.0:
        problem = f"all {gate.rollouts} rollouts of the evaluation failed"
        yield Finding("all-failed", "error", problem, "osmosis eval show NAME says why; failed rollouts teach nothing")
        return
    if gate.failed and gate.failed >= MANY_FAILED:
        problem = f"{gate.failed:.0%} of the rollouts of the evaluation failed"
        yield Finding("failed", "warning", problem, "osmosis eval show NAME says why; they teach nothing")
    between = gate.signal_interval
    bounds = f"{between.low:.0%} to {between.high:.0%}" if between else "an unknown share"
    outcome = f"of the groups of {size} will have different rewards, and only they teach"
    if between is not None and between.high < NO_SIGNAL:
        problem = f"at most {between.high:.1%} {outcome}"
        yield Finding("no-signal", "error", problem, "use rows of mixed difficulty, a finer reward, or another model")
    elif gate.signal is None:
        same = len(set(rewards)) == 1
        reason = f"all rewards are {rewards[0]:g}" if same else "the evaluation has one attempt per row"
        yield Finding("no-signal", "warning", f"{reason}: {bounds} {outcome}", "evaluate with n = 4 in [evaluation]")
    elif gate.signal <= FEW_SIGNAL:
        problem = f"about {gate.signal:.0%} ({bounds}) {outcome}"
        yield Finding("no-signal", "warning", problem, "use rows of mixed difficulty, or a finer reward")


def signal_of(groups: Sequence[Sequence[float]], size: int) -> tuple[float | None, Interval | None]:
    """Return the share of groups of `size` attempts with different rewards, and bounds. With fewer attempts than a
    group, the estimate takes a beta distribution of the rows' rates."""
    groups, size = [group for group in groups if group], max(2, size)
    if len(groups) < 2:
        return None, None
    common = Counter(reward for group in groups for reward in group).most_common(1)[0][0]
    ones = [1] * len(groups)
    lows, highs, most = [], [], 1.0
    for group in groups:
        n, counts = len(group), Counter(group).values()
        k = min(size, n)
        differ = 1 - sum(pass_hat_k(n, count, k) for count in counts)
        lows.append(differ)
        highs.append(differ * size / k if k > 1 else size)
        most = max(most, size / k)
    low = bounded_interval(lows, ones)
    high = bounded_interval(highs, ones, (0.0, most))
    rate = bounded_interval([group.count(common) / len(group) for group in groups], ones)
    if low is None or high is None or rate is None:
        return None, None
    interval = Interval(low=low.low, high=max(low.low, min(1.0, high.high, 1 - rate.low**size)))
    estimate = _expected_signal([group for group in groups if len(group) > 1], common, size)
    return estimate, interval


def _expected_signal(groups: Sequence[Sequence[float]], common: float, size: int) -> float | None:
    if not groups:
        return None
    if all(len(group) >= size for group in groups):
        silent = [sum(pass_hat_k(len(group), count, size) for count in Counter(group).values()) for group in groups]
        return 1 - sum(silent) / len(silent)
    shares = [(group.count(common), len(group)) for group in groups]
    rate = sum(k / n for k, n in shares) / len(shares)
    differ = sum(2 * k * (n - k) / (n * (n - 1)) for k, n in shares) / len(shares)
    if differ == 0:
        return 0.0
    spread = max(1e-6, 1 - min(1.0, differ / (2 * rate * (1 - rate))))
    a, b = (share * (1 - spread) / spread for share in (rate, 1 - rate))
    equal = [math.prod((side + i) / (a + b + i) for i in range(size)) for side in (a, b)]
    return max(0.0, 1 - sum(equal))


@dataclass(frozen=True, slots=True)
class CurveInfo:
    key: str
    name: str
    title: str
    group: str
    about: str


_REWARD, _ANSWERS, _UPDATE, _TOKENS, _TIME = "Reward", "Rollouts", "Update", "Tokens", "Time"
CURVES: Sequence[CurveInfo] = [
    CurveInfo(*info)
    for info in (
        ("rollout/raw_reward", "training_reward", "Training reward", _REWARD, "mean over a step's rollouts"),
        ("eval/validation/reward", "validation_reward", "Validation reward", _REWARD, "mean over the held-out rows"),
        ("eval/sealed", "sealed_score", "Sealed score", _REWARD, "of the sealed grader, over the held-out rows"),
        ("rollout/reward_std", "reward_std", "Reward spread", _REWARD, "standard deviation in a step"),
        ("rollout/reward_p10", "reward_p10", "Reward, 10 %", _REWARD, "of a step's rollouts have less"),
        ("rollout/reward_p50", "reward_p50", "Reward, median", _REWARD, "of a step's rollouts"),
        ("rollout/reward_p90", "reward_p90", "Reward, 90 %", _REWARD, "of a step's rollouts have less"),
        ("rollout/no_signal_ratio", "no_signal", "Rows without signal", _REWARD, "share with equal rewards"),
        ("rollout/failed_ratio", "failed", "Failed rollouts", _REWARD, "share without a reward, in no statistic"),
        ("eval/validation/failed_ratio", "validation_failed", "Failed validation rollouts", _REWARD, "share of them"),
        ("rollout/response_lengths", "response_length", "Response length", _ANSWERS, "tokens the model said"),
        ("rollout/total_lengths", "total_length", "Total length", _ANSWERS, "tokens with prompt and environment"),
        ("rollout/truncated_ratio", "truncation_ratio", "Truncated", _ANSWERS, "share cut off by a length limit"),
        ("rollout/repetition_ratio", "repetition", "Repetition", _ANSWERS, "share of repeated word groups"),
        ("rollout/turns", "turns", "Turns", _ANSWERS, "answers of the model per rollout"),
        ("rollout/forks", "forks", "Forks", _ANSWERS, "histories that were rewritten in a step"),
        ("rollout/forked_tokens_ratio", "forked_tokens", "Tokens of forks", _ANSWERS, "left out, in older runs"),
        ("rollout/malformed_calls", "malformed_calls", "Malformed tool calls", _ANSWERS, "in a step"),
        ("train/entropy_loss", "entropy", "Entropy", _UPDATE, "how undecided the model is, nats per token"),
        ("train/kl", "kl", "KL", _UPDATE, "distance from the base model; of some tokens where it has no weight"),
        ("train/mismatch_mean", "mismatch", "Sampler mismatch", _UPDATE, "mean distance of log-probabilities"),
        ("train/mismatch_p99", "mismatch_p99", "Sampler mismatch, 99 %", _UPDATE, "of tokens are closer"),
        ("train/mismatch_max", "mismatch_max", "Sampler mismatch, largest", _UPDATE, "of a token"),
        ("train/mismatch_kl", "mismatch_kl", "Sampler KL", _UPDATE, "distance of the trainer from its sampler"),
        ("train/importance_ratio", "importance_ratio", "Importance ratio", _UPDATE, "trainer to sampler, mean"),
        ("train/importance_weight", "importance_weight", "Importance weight", _UPDATE, "as applied, mean"),
        ("train/outside_clip", "outside_clip", "Outside the clip range", _UPDATE, "share, before the update"),
        ("train/clip_ratio", "clip_ratio", "Clipped", _UPDATE, "share of tokens whose ratio was clipped"),
        ("train/clip_ratio_low", "clip_ratio_low", "Clipped below", _UPDATE, "share of tokens, by `clip`"),
        ("train/clip_ratio_high", "clip_ratio_high", "Clipped above", _UPDATE, "share of tokens, by `clip_high`"),
        ("train/token_accuracy", "token_accuracy", "Token accuracy", _UPDATE, "share that was foreseen"),
        ("train/teacher_kl", "teacher_kl", "Teacher KL", _UPDATE, "distance from the teacher"),
        ("train/reward_margin", "reward_margin", "Preference margin", _UPDATE, "of better over worse, by `beta`"),
        ("train/preference_accuracy", "preference_accuracy", "Preference accuracy", _UPDATE, "share of pairs in order"),
        ("train/grad_norm", "grad_norm", "Gradient norm", _UPDATE, "before it is limited"),
        ("train/loss", "loss", "Loss", _UPDATE, "near 0 for GRPO: advantages cancel out"),
        ("train/lr", "lr", "Learning rate", _UPDATE, ""),
        ("rollout/staleness", "staleness", "Staleness", _TOKENS, "updates since a step's rollouts began"),
        ("rollout/carried_groups", "carried_groups", "Carried groups", _TOKENS, "of a step that began in earlier ones"),
        ("rollout/waiting_groups", "waiting_groups", "Waiting groups", _TOKENS, "that began, for a later step to use"),
        ("rollout/carried_length_ratio", "carried_length", "Length of carried groups", _TOKENS, "to the step's mean"),
        ("rollout/rows_solved", "rows_solved", "Solved rows", _REWARD, "of a step, by all their rollouts"),
        ("rollout/rows_unsolved", "rows_unsolved", "Unsolved rows", _REWARD, "of a step, by none of their rollouts"),
        ("rollout/replaced_groups", "replaced_groups", "Replaced groups", _TOKENS, "whose rewards were all the same"),
        ("rollout/replaced_rollouts", "replaced_rollouts", "Replaced rollouts", _TOKENS, "in those groups"),
        ("rollout/cut_off", "cut_off", "Cut off", _ANSWERS, "rollouts of a step, by straggler_timeout_s"),
        ("fidelity/sampled_tokens", "sampled_tokens", "Sampled tokens", _TOKENS, "in a step"),
        ("train/trained_tokens", "trained_tokens", "Trained tokens", _TOKENS, "each once"),
        ("fidelity/unscored_tokens", "unscored_tokens", "Tokens without a reward", _TOKENS, "of failed rollouts"),
        ("fidelity/twice", "tokens_twice", "Tokens twice", _TOKENS, "in two sequences: a bug"),
        ("fidelity/lost", "tokens_lost", "Tokens lost", _TOKENS, "in no sequence: a bug"),
        ("fidelity/repaired", "repaired_calls", "Repaired calls", _TOKENS, "spelled as sampled, not as rendered"),
        ("fidelity/foreign_calls", "foreign_calls", "Foreign calls", _TOKENS, "outside of a rollout"),
        ("perf/memory_gib", "memory", "Memory, GiB", _TIME, "most that the trainer has used"),
        ("perf/tokens_per_s", "tokens_per_s", "Tokens per second", _TIME, "sampled"),
        ("perf/rollout_s", "rollout_s", "Rollouts, seconds", _TIME, "of a step"),
        ("perf/update_s", "update_s", "Update, seconds", _TIME, "of a step"),
        ("perf/trained_tokens_per_s", "trained_tokens_per_s", "Trained tokens per second", _TIME, "of the update"),
        ("perf/mfu", "mfu", "FLOPs utilization", _TIME, "of the update: model FLOPs, as a share of the GPUs' peak"),
        ("perf/wait_s", "wait_s", "Waiting, seconds", _TIME, "of a step: neither rollouts nor update"),
        ("perf/wait_ratio", "wait_ratio", "Waiting, share", _TIME, "of waiting and update"),
    )
]
_BY_KEY: Mapping[str, tuple[int, CurveInfo]] = {info.key: (at, info) for at, info in enumerate(CURVES)}


def curve_info(key: str) -> CurveInfo:
    if key.startswith("rollout/reward/"):
        return CurveInfo(key, key, key.removeprefix("rollout/"), _REWARD, "mean of a part of the reward")
    return _find_curve(key)[1]


def _find_curve(key: str) -> tuple[int, CurveInfo]:
    """Return the place of a curve and what it shows; `KEY/NAME` is that of one environment of a mixture."""
    base, _, environment = key.rpartition("/")
    if key in _BY_KEY or base not in _BY_KEY:
        return _BY_KEY.get(key, (len(_BY_KEY), CurveInfo(key, key, key, "Other", "")))
    at, info = _BY_KEY[base]
    return at, replace(info, key=key, name=key, title=f"{info.title}, {environment}")


def in_order(keys: Iterable[str]) -> list[str]:
    return sorted(keys, key=lambda key: (_find_curve(key)[0], key))


def sparkline(values: Sequence[float], width: int = 24) -> str:
    marks = "▁▂▃▄▅▆▇█"
    if not values:
        return ""
    count = min(width, len(values))
    groups = [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(marks[min(7, int((mean - low) / span * 8))] for mean in means)


COURSES = (
    ("rollout/raw_reward", "reward", "Training reward"),
    ("eval/validation/reward", "validation_reward", "Validation reward"),
    ("eval/sealed", "sealed_score", "Sealed score"),
)
SUMS: Sequence[tuple[str, str, str, Format, int]] = (
    ("fidelity/sampled_tokens", "sampled_tokens", "Sampled tokens", "count", 1),
    ("train/trained_tokens", "trained_tokens", "Trained tokens", "count", 1),
    ("perf/update_s", "update_ms", "Time in updates", "ms", 1000),
)
"""Curves that are added up over the steps: key, name, label, format and factor."""


def training_figures(
    curves: Mapping[str, Curve], *, rollouts: int | None = None, duration_ms: float | None = None
) -> Iterator[Figure]:
    for key, name, label in COURSES:
        points = curves.get(key)
        if not points:
            continue
        (first_step, first), (last_step, last) = points[0], points[-1]
        step, best = max(points, key=lambda point: (point[1], point[0]))
        detail = f"at step {last_step}; {first:.3f} at step {first_step}"
        yield Figure(f"last_{name}", label, last, detail=detail, headline=True)
        yield Figure(f"best_{name}", f"Best {label.lower()}", best, detail=f"at step {step}", headline=True)
    steps = max((points[-1][0] for points in curves.values() if points), default=0)
    yield Figure("steps", "Steps", steps, "count")
    if rollouts is not None:
        yield Figure("rollouts", "Rollouts", rollouts, "count", detail="validation included")
    for key, name, label, format, factor in SUMS:
        if key in curves:
            yield Figure(name, label, factor * sum(value for _, value in curves[key]), format)
    if duration_ms is not None:
        yield Figure("duration_ms", "Time", duration_ms, "ms")


def list_figures(metrics: TrainingMetrics) -> list[Figure]:
    overview = metrics.overview
    rollouts, duration_ms = (overview.examples_processed_count, overview.duration_ms) if overview else (None, None)
    return list(training_figures(metrics.curves(), rollouts=rollouts, duration_ms=duration_ms))


def list_changed_keys(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    leaves = [dict(iterate_leaves(config)) for config in configs]
    changed = {}
    for key in dict.fromkeys(key for values in leaves for key in values):
        written = [config.get(key, "") for config in leaves]
        values = [value if isinstance(value, str) else json.dumps(value) for value in written]
        if len(set(values)) > 1:
            changed[key] = values
    return changed
