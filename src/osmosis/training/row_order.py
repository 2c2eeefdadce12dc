"""The order in which rows are trained on: drawn from the seed alone, so that a resumed run continues where it was. Each
pass over the rows is a permutation of its own, cut into steps; rows that do not fill a last step wait for another pass.
No row comes twice in a step."""

import random
from collections.abc import Sequence

from osmosis.errors import ValidationError


def steps_in(rows: int, rows_per_step: int, epochs: int) -> int:
    """Return the steps of so many passes. Raise `ValidationError` when the rows do not fill one step."""
    if rows < rows_per_step:
        raise ValidationError(
            f"the dataset has {rows} rows to train on, and a step takes {rows_per_step}",
            hint=f"lower rollout_batch_size to {rows} or less, or add rows" if rows else "add rows to the dataset",
        )
    return epochs * (rows // rows_per_step)


def rows_of_step(rows: Sequence[int], rows_per_step: int, step: int, seed: int) -> list[int]:
    steps_in(len(rows), rows_per_step, 1)
    epoch, index = divmod(step - 1, len(rows) // rows_per_step)
    order = list(rows)
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order[index * rows_per_step : (index + 1) * rows_per_step]
