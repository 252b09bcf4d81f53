//! Messages of the processes of a run, read as they arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use memfit_channel::message::{Cause, Done, HostCompared, Loader, LoaderTrial, Oom, Training};
use memfit_channel::{ClockMark, Message, RunDir};
use memfit_report::remarks::Note;
use memfit_report::wire::Exception;

/// Maximum bytes of a line; a longer one is not a message.
const MAX_LINE_BYTES: usize = 16 << 20;

/// All messages so far.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// By process id.
    pub(crate) processes: BTreeMap<u32, Speaker>,
    tails: BTreeMap<u32, Tail>,
    /// Number of messages.
    pub(crate) count: u64,
    /// Number of lines that could not be parsed.
    pub(crate) garbled: u64,
}

/// State of a process according to its messages.
#[derive(Debug, Default)]
pub(crate) struct Speaker {
    /// Process id of its parent.
    pub(crate) parent: Option<u32>,
    /// Path of its interpreter.
    pub(crate) executable: Option<String>,
    /// `RANK`.
    pub(crate) rank: Option<u32>,
    /// `WORLD_SIZE`.
    pub(crate) world_size: Option<u32>,
    /// `torch.__version__`.
    pub(crate) torch: Option<String>,
    /// Allocator settings when PyTorch was imported.
    pub(crate) alloc_conf: Option<String>,
    /// Completed optimizer steps.
    pub(crate) steps: u64,
    /// Bytes in blocks after the last step.
    pub(crate) allocated: u64,
    /// Peak bytes in blocks in any step.
    pub(crate) peak_allocated: u64,
    /// Readings of the device's clock at the end of each step.
    pub(crate) marks: Vec<ClockMark>,
    /// Out-of-memory errors, each with the number of steps completed by then.
    pub(crate) ooms: Vec<(Oom, u64)>,
    /// Messages of the out-of-memory errors.
    pub(crate) oom_texts: Vec<String>,
    /// Assumed values that the script read: the id of each assumption, and a line that read it.
    pub(crate) assumed: Vec<(String, String)>,
    /// Places of conditions on unknown values, in the order of their first evaluation.
    pub(crate) conditions: Vec<String>,
    /// The line that read such values most often since the last step, and how often.
    pub(crate) repeated: Option<(String, u64)>,
    /// Remarks on the accuracy of the results.
    pub(crate) notes: Vec<Note>,
    /// The uncaught exception, and whether it was an out-of-memory error.
    pub(crate) exception: Option<(Exception, bool)>,
    /// Number of messages of all processes before the exception.
    pub(crate) failed: u64,
    /// Possible causes of the exception.
    pub(crate) cause: Cause,
    /// Levers that could not be applied, with reasons.
    pub(crate) refused: Vec<(String, String)>,
    /// Facts about the training.
    pub(crate) training: Option<Training>,
    /// Result of a comparison run on the host.
    pub(crate) on_host: Option<HostCompared>,
    /// Measurement of its own loader, if requested.
    pub(crate) loader: Option<Loader>,
    /// The same measurement with other numbers of workers.
    pub(crate) trials: Vec<LoaderTrial>,
    /// Last message.
    pub(crate) done: Option<Done>,
}

impl Speaker {
    /// Returns `true` if the requested steps are complete, and the process waits to be ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.done.as_ref().is_some_and(|done| done.reason == "steps")
    }

    /// Number of steps, or of forward passes if the script has no optimizer.
    pub(crate) fn all_steps(&self) -> u64 {
        self.done.as_ref().map_or(self.steps, |done| done.steps.max(self.steps))
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Hello { parent, executable, rank, world_size, .. } => {
                self.parent = parent;
                self.executable = Some(executable);
                self.rank = rank;
                self.world_size = world_size;
            }
            Message::Torch { version, alloc_conf, .. } => {
                self.torch = Some(version);
                self.alloc_conf = alloc_conf;
            }
            Message::Step { step, allocated, peak_allocated, clock } => {
                if self.steps == 0 {
                    // Forward passes before the first step are not part of the training.
                    self.marks.clear();
                }
                self.marks.extend(clock);
                self.steps = self.steps.max(step);
                self.repeated = None;
                self.allocated = allocated;
                self.peak_allocated = self.peak_allocated.max(peak_allocated);
            }
            // Without steps, forward passes mark the time.
            Message::Pass { clock } if self.steps == 0 => self.marks.push(clock),
            Message::Pass { .. } => {}
            Message::Oom(oom) => self.ooms.push((oom, self.steps)),
            Message::OomText { text } => self.oom_texts.push(text),
            Message::Note { id, values } => self.notes.push(Note::received(&id, values)),
            Message::Exception { r#type, message, traceback, oom, cause } => {
                self.exception = Some((Exception { r#type, message, traceback }, oom));
                self.cause = cause;
            }
            Message::Assumed { id, place } => self.assumed.push((id, place)),
            Message::Condition { place } => self.conditions.push(place),
            Message::Repeated { place, count } => self.repeated = Some((place, count)),
            Message::Refused { lever, why } => self.refused.push((lever, why)),
            Message::Training(training) => self.training = Some(*training),
            Message::HostRun(compared) => self.on_host = Some(compared),
            Message::Loader(loader) => self.loader = Some(*loader),
            Message::LoaderTrial(trial) => self.trials.push(trial),
            Message::Done(done) => self.done = Some(done),
        }
    }
}

/// Read position in a file.
#[derive(Debug, Default)]
struct Tail {
    read: u64,
    partial: Vec<u8>,
}

impl Inbox {
    /// Reads new messages. A file that cannot be read now is retried at the next call.
    pub(crate) fn poll(&mut self, run_dir: &RunDir) {
        for pid in run_dir.message_pids().unwrap_or_default() {
            let tail = self.tails.entry(pid).or_default();
            let Some(new) = tail.read_new_lines(&run_dir.messages(pid)) else { continue };
            for line in new.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
                match serde_json::from_slice(line) {
                    Ok(message) => {
                        self.count += 1;
                        let speaker = self.processes.entry(pid).or_default();
                        if matches!(message, Message::Exception { .. }) {
                            speaker.failed = self.count;
                        }
                        speaker.receive(message);
                    }
                    Err(_) => self.garbled += 1,
                }
            }
        }
    }

    /// Processes that are ranks of a training run: those with a rank, else those that trained.
    ///
    /// Child processes of a rank inherit its number, for example the compiler processes of Inductor. Among
    /// processes with the same number, those that trained or used memory are the rank; before any of them
    /// has, those that no other process of the same number started.
    pub(crate) fn ranks(&self) -> Vec<(u32, &Speaker)> {
        self.ranks_by(&|_| false)
    }

    /// The same, where `holds` tells the processes with blocks on a GPU: before any process has trained, they
    /// are a script's ranks, and its own process and its loaders' workers are not.
    pub(crate) fn ranks_by(&self, holds: &dyn Fn(u32) -> bool) -> Vec<(u32, &Speaker)> {
        let with = |wanted: &dyn Fn(u32, &Speaker) -> bool| -> Vec<(u32, &Speaker)> {
            self.processes
                .iter()
                .filter(|(pid, speaker)| wanted(**pid, speaker))
                .map(|(pid, speaker)| (*pid, speaker))
                .collect()
        };
        let numbered = |speaker: &Speaker| speaker.rank.is_some() && speaker.torch.is_some();
        let active: BTreeSet<Option<u32>> = (self.processes.values())
            .filter(|speaker| numbered(speaker) && speaker.is_active())
            .map(|speaker| speaker.rank)
            .collect();
        let mut ranks = with(&|_, speaker| {
            numbered(speaker)
                && if active.contains(&speaker.rank) {
                    speaker.is_active()
                } else {
                    !self.is_child_of_its_rank(speaker)
                }
        });
        if ranks.is_empty() {
            ranks = with(&|_, speaker| speaker.torch.is_some() && speaker.is_active());
        }
        if ranks.is_empty() {
            ranks = with(&|pid, speaker| speaker.torch.is_some() && holds(pid));
        }
        if ranks.is_empty() {
            ranks = with(&|_, speaker| speaker.torch.is_some());
        }
        ranks.sort_by_key(|(pid, speaker)| (speaker.rank, *pid));
        ranks
    }

    /// Returns `true` if a process with the same rank started this one.
    fn is_child_of_its_rank(&self, speaker: &Speaker) -> bool {
        // Process ids are reused, so a chain of parents may be a cycle.
        let mut above = speaker.parent;
        for _ in 0..self.processes.len() {
            let Some(parent) = above.and_then(|pid| self.processes.get(&pid)) else { return false };
            if parent.rank == speaker.rank && parent.torch.is_some() {
                return true;
            }
            above = parent.parent;
        }
        false
    }

    /// Processes that started one of the others.
    pub(crate) fn launchers(&self) -> BTreeSet<u32> {
        self.processes.values().filter_map(|speaker| speaker.parent).collect()
    }

    /// Number of ranks that have ended, or have completed their steps.
    pub(crate) fn finished_ranks(&self) -> usize {
        let mut finished: BTreeMap<u32, bool> = BTreeMap::new();
        let ranks = self.ranks();
        for (_, speaker) in &ranks {
            let Some(rank) = speaker.rank else { continue };
            let all = finished.entry(rank).or_insert(true);
            *all &= speaker.done.is_some();
        }
        for (_, speaker) in ranks.iter().filter(|(_, speaker)| speaker.is_complete()) {
            finished.extend(speaker.rank.map(|rank| (rank, true)));
        }
        finished.values().filter(|finished| **finished).count()
    }
}

impl Speaker {
    /// Returns `true` if the process completed a step or used a GPU's memory.
    fn is_active(&self) -> bool {
        self.steps > 0
            || !self.ooms.is_empty()
            || self
                .done
                .as_ref()
                .is_some_and(|done| done.devices.values().any(|stats| stats.peak_reserved > 0))
    }
}

impl Tail {
    /// Returns the complete lines that were added since the last call.
    fn read_new_lines(&mut self, path: &std::path::Path) -> Option<Vec<u8>> {
        let mut file = File::open(path).ok()?;
        if file.metadata().ok()?.len() <= self.read {
            return None;
        }
        file.seek(SeekFrom::Start(self.read)).ok()?;
        let before = self.partial.len();
        let read = file.read_to_end(&mut self.partial);
        self.read += (self.partial.len() - before) as u64;
        read.ok()?;
        let end = match self.partial.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.partial.len() > MAX_LINE_BYTES => self.partial.len(),
            None => return None,
        };
        let rest = self.partial.split_off(end);
        Some(std::mem::replace(&mut self.partial, rest))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn incomplete_lines_are_read_when_they_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let mut file = File::create(run_dir.messages(7)).unwrap();
        let mut inbox = Inbox::default();

        file.write_all(b"{\"kind\":\"torch\",\"version\":\"2.15.0\",\"cuda\":\"13.2\"}\n{\"kind\":\"st")
            .unwrap();
        inbox.poll(&run_dir);
        assert_eq!(inbox.processes[&7].torch.as_deref(), Some("2.15.0"));
        assert_eq!((inbox.count, inbox.processes[&7].steps), (1, 0));

        file.write_all(b"ep\",\"step\":1,\"allocated\":5,\"peak_allocated\":9}\nnot json\n").unwrap();
        inbox.poll(&run_dir);
        inbox.poll(&run_dir);
        let speaker = &inbox.processes[&7];
        assert_eq!((speaker.steps, speaker.allocated, speaker.peak_allocated), (1, 5, 9));
        assert_eq!((inbox.count, inbox.garbled), (2, 1));
    }

    #[test]
    fn reads_are_counted_within_a_step() {
        let mut speaker = Speaker::default();
        speaker.receive(Message::Repeated { place: "train.py:3 in main".to_owned(), count: 1000 });
        speaker.receive(Message::Repeated { place: "train.py:3 in main".to_owned(), count: 10_000 });
        assert_eq!(speaker.repeated, Some(("train.py:3 in main".to_owned(), 10_000)));
        speaker.receive(Message::Step { step: 1, allocated: 0, peak_allocated: 0, clock: None });
        assert_eq!(speaker.repeated, None);
    }

    #[test]
    fn an_out_of_memory_error_has_the_number_of_steps_before_it() {
        let mut speaker = Speaker::default();
        speaker.receive(Message::Step { step: 2, allocated: 0, peak_allocated: 0, clock: None });
        let oom = Oom {
            requested: 1,
            device: 0,
            step: 3,
            phase: "forward".into(),
            module: None,
            evaluation: false,
            stack: Vec::new(),
        };
        speaker.receive(Message::Oom(oom));
        speaker.receive(Message::Step { step: 3, allocated: 0, peak_allocated: 0, clock: None });
        assert_eq!(speaker.ooms[0].1, 2);
        assert_eq!(speaker.steps, 3);
    }

    /// A process with PyTorch and a rank.
    fn ranked(rank: u32, parent: u32, steps: u64) -> Speaker {
        Speaker {
            parent: Some(parent),
            rank: Some(rank),
            world_size: Some(2),
            torch: Some("2.15.0".to_owned()),
            steps,
            ..Speaker::default()
        }
    }

    fn ended(speaker: Speaker, reason: &str) -> Speaker {
        Speaker { done: Some(Done { reason: reason.to_owned(), ..Done::default() }), ..speaker }
    }

    fn pids(inbox: &Inbox) -> Vec<u32> {
        inbox.ranks().into_iter().map(|(pid, _)| pid).collect()
    }

    #[test]
    fn a_child_that_inherits_its_ranks_number_is_no_rank() {
        // The compiler process of rank 0 has ended before the rank itself has done anything.
        let mut inbox = Inbox::default();
        inbox.processes.extend([
            (10, ranked(0, 1, 0)),
            (11, ranked(1, 1, 0)),
            (12, ended(ranked(0, 10, 0), "exit")),
            (13, ranked(0, 12, 0)),
        ]);
        assert_eq!(pids(&inbox), [10, 11]);
        assert_eq!(inbox.finished_ranks(), 0);

        inbox.processes.insert(10, ended(ranked(0, 1, 3), "steps"));
        assert_eq!(pids(&inbox), [10, 11]);
        assert_eq!(inbox.finished_ranks(), 1);

        inbox.processes.insert(11, ended(ranked(1, 1, 3), "steps"));
        assert_eq!(inbox.finished_ranks(), 2);
    }

    #[test]
    fn processes_with_memory_are_ranks_before_any_has_trained() {
        let process = |torch: Option<&str>| Speaker { torch: torch.map(str::to_owned), ..Speaker::default() };
        let mut inbox = Inbox::default();
        // A script, two processes that it started, a worker of the first, and a helper without PyTorch.
        inbox.processes.extend([10, 11, 12, 13].map(|pid| (pid, process(Some("2.15.0")))));
        inbox.processes.insert(14, process(None));
        let found = |inbox: &Inbox, holding: &[u32]| -> Vec<u32> {
            inbox.ranks_by(&|pid| holding.contains(&pid)).into_iter().map(|(pid, _)| pid).collect()
        };
        assert_eq!(found(&inbox, &[11, 12]), [11, 12]);
        assert_eq!(found(&inbox, &[]), [10, 11, 12, 13]);
        inbox.processes.get_mut(&12).unwrap().steps = 1;
        assert_eq!(found(&inbox, &[11, 12]), [12]);
    }

    #[test]
    fn a_rank_that_trains_in_a_child_is_the_child() {
        let mut inbox = Inbox::default();
        inbox.processes.extend([(10, ranked(0, 1, 0)), (12, ranked(0, 10, 2))]);
        assert_eq!(pids(&inbox), [12]);
        // Circles of parents end.
        inbox.processes.extend([(12, ranked(0, 10, 0)), (10, ranked(0, 12, 0))]);
        assert_eq!(pids(&inbox), [10, 12]);
    }
}
