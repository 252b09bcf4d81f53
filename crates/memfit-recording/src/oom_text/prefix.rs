//! Prefixes of lines that name the process: those of launchers, and of servers with worker processes.

/// Process that printed a line, as far as the line's prefix names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Speaker {
    /// Its rank.
    pub(super) rank: Option<u32>,
    /// Its process id.
    pub(super) process: Option<u32>,
    /// It is a worker of a server for language models.
    pub(super) is_server: bool,
}

impl Speaker {
    const fn of_rank(rank: u32) -> Self {
        Self { rank: Some(rank), process: None, is_server: false }
    }
}

/// Splits the prefix that names the process from a line.
pub(super) fn split_speaker(line: &str) -> (Speaker, &str) {
    let trimmed = line.trim_start();
    // `[rank3]: …` of PyTorch, `[default3]:…` of torchrun, `[Rank 3] …`.
    for opening in ["[rank", "[Rank ", "[RANK ", "[default", "[RANK", "[Rank"] {
        if let Some((digits, rest)) = trimmed.strip_prefix(opening).and_then(|rest| rest.split_once(']'))
            && let Ok(rank) = digits.trim().parse()
        {
            return (Speaker::of_rank(rank), rest.strip_prefix(':').unwrap_or(rest));
        }
    }
    // `[1,3]<stderr>:…` of mpirun.
    if let Some((pair, rest)) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once("]<std"))
        && let Some(Ok(rank)) = pair.split_once(',').map(|(_, rank)| rank.trim().parse())
    {
        return (Speaker::of_rank(rank), rest.split_once(">:").map_or(rest, |(_, rest)| rest));
    }
    // `3: …` of `srun --label`.
    if let Some((digits, rest)) = trimmed.split_once(": ")
        && digits.len() <= 5
        && let Ok(rank) = digits.parse()
    {
        return (Speaker::of_rank(rank), rest);
    }
    // `(Worker rank=1 pid=4242) …` of vLLM, `(Worker_TP1 pid=4242)`, `(WorkerDict pid=4242, ip=…)` of Ray.
    if let Some((inside, rest)) = trimmed.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        && let Some(process) = number_behind(inside, "pid=")
    {
        let name = inside.split([' ', ',']).next().unwrap_or("");
        let rank = number_behind(inside, "rank=").or_else(|| number_behind(name, "Worker_TP"));
        let is_server = ["VllmWorker", "Worker", "EngineCore"].iter().any(|server| {
            name.strip_prefix(server).is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', 'P']))
        });
        let speaker = Speaker { rank, process: Some(process), is_server };
        return (speaker, rest.strip_prefix(':').unwrap_or(rest));
    }
    (Speaker::default(), line)
}

fn number_behind(text: &str, words: &str) -> Option<u32> {
    let (_, rest) = text.split_once(words)?;
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}
