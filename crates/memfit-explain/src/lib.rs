//! Who held the memory: judgements over a Recording.
