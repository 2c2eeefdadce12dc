"""The messages between a training job and its trainer: records, and the job's end of the connection.

The trainer is started with a plan and the path of a Unix socket (`python -m osmosis.training.trainer PLAN SOCKET`) and
answers HTTP there. Nobody else can reach it: the socket has mode 0600, and there is no other way in.

- `GET /health` answers `TrainerHealth`: state, and facts about the model.
- `POST /sample` takes a `SampleRequest` and answers lines of JSON: `{"delta": SampleDelta}` while it is sampled and
  streaming was asked for, then `{"done": Sample}` or `{"error": SampleError}`. Closing the connection cancels it.
- `GET /events?after=N&wait=S` answers lines of JSON: `Numbered` events after number N; waits up to S seconds for the
  first one. Asking for what comes after N says that everything up to N has been dealt with.
- `POST /batch` takes a `Batch` in its binary form, the answer to a `collect` event; 409 when no such collect is open,
  422 when it does not fit what was asked for. One that was taken may come again, and after a stop any is dropped.
- `POST /stop`: a checkpoint is saved at the next step boundary, then the trainer ends with a `done` event.

One training step: the trainer opens for sampling and says `collect`; the job runs the rollouts, which sample through
`/sample`, and posts the batch; the trainer closes for sampling, updates the weights and says `metrics`, and
`checkpoint` when one was saved. A request to `/sample` outside of a collect waits for the next one.

Nothing here imports torch: the job lives in the platform's environment, the trainer in one of its own."""
