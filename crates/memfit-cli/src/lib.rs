//! Arguments and dispatch, and the processes of a run.
