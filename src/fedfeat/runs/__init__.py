"""An experiment put together and run in a folder: checkpoints, resume, many runs, trained models, trackers."""
