//! The watcher in a process: logs every block that PyTorch's allocator hands out.
