from osmosis.records.run.rollout import RolloutStatus
from osmosis.training.step_journal import StoredScore, StoredStepRollout, step_figures


def test_the_rewards_of_a_step_have_a_spread_percentiles_and_parts() -> None:
    def rollout(number: int, reward: float | None, **parts: float) -> StoredStepRollout:
        scores = {"reward": StoredScore(reward, parts=parts)}
        return StoredStepRollout(number, 0, RolloutStatus.SUCCESS, scores, reward=reward)

    rewards = [rollout(number, number / 10, format=number % 2, right=1.0) for number in range(11)]
    figures = step_figures([*rewards, rollout(11, None)], "train")
    assert [figures[f"rollout/reward_p{rank}"] for rank in (10, 50, 90)] == [0.1, 0.5, 0.9]
    assert round(figures["rollout/reward_std"], 4) == 0.3162
    assert (figures["rollout/reward/format"], figures["rollout/reward/right"]) == (5 / 11, 1.0)
