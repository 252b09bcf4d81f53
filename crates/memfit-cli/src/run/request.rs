//! What was asked: arguments and settings together, with names looked up.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use memfit_devices::{Bytes, Catalogue, Device, Origin};
use memfit_link::env::LONE_RANK;
use memfit_link::{ClockMode, HostTime, LeverSetup, Planned, Synthetic};
use memfit_plan::Plan;
use memfit_report::wire::{CardKind, DeviceInfo};

use crate::CliError;
use crate::args::{Cover, GpuChoice, PlanArgs, RunArgs, Sizes};
use crate::settings::Settings;

/// How many steps run when nobody says.
const STEPS: u64 = 3;
/// How long a run may take when nobody says.
const TIMEOUT: Duration = Duration::from_mins(10);
/// The name that means the real GPU.
const LOCAL: &str = "local";

/// The card that the question is about.
#[derive(Clone, Debug)]
pub(crate) enum Card {
    /// So many virtual cards of a kind.
    Virtual(Box<Device>, u32),
    /// The real one.
    Local(u32),
}

impl Card {
    /// Whether it is the real one.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// What the report says of it.
    pub(crate) fn info(&self) -> DeviceInfo {
        match self {
            Self::Virtual(device, count) => DeviceInfo {
                name: device.name.clone(),
                capacity: device.memory.get(),
                count: *count,
                kind: CardKind::Virtual,
            },
            Self::Local(count) => {
                DeviceInfo { name: LOCAL.to_owned(), capacity: 0, count: *count, kind: CardKind::Real }
            }
        }
    }
}

/// The one process of a run, in place of one rank of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoneRank {
    /// Which rank.
    pub(crate) rank: u32,
    /// Of how many.
    pub(crate) size: u32,
    /// How many of them each machine has: as many as it has cards.
    pub(crate) on_each: u32,
}

impl LoneRank {
    /// The first of the processes that a launcher starts on this machine, which all have a card of their own.
    pub(crate) const fn first_of(size: u32, on_each: u32) -> Self {
        Self { rank: 0, size, on_each }
    }

    fn new(rank: Option<u32>, size: Option<u32>, card: &Card) -> Result<Option<Self>, CliError> {
        let Some(size) = size else { return Ok(None) };
        let rank = rank.unwrap_or(0);
        match card {
            _ if rank >= size => Err(CliError::NoSuchRank { rank, size }),
            Card::Local(_) => Err(CliError::LoneRankOfLocal),
            Card::Virtual(_, count) => Ok(Some(Self { rank, size, on_each: *count })),
        }
    }

    /// What a launcher sets for that rank.
    pub(crate) fn environment(self) -> Vec<(&'static str, String)> {
        let Self { rank, size, on_each } = self;
        let on_this = on_each.min(size - rank / on_each * on_each);
        let numbers = [
            ("RANK", rank),
            ("WORLD_SIZE", size),
            ("LOCAL_RANK", rank % on_each),
            ("LOCAL_WORLD_SIZE", on_this),
            ("GROUP_RANK", rank / on_each),
            ("GROUP_WORLD_SIZE", size.div_ceil(on_each)),
            ("MASTER_PORT", 29500),
        ];
        let mut variables: Vec<_> =
            numbers.into_iter().map(|(name, number)| (name, number.to_string())).collect();
        variables.push(("MASTER_ADDR", "127.0.0.1".to_owned()));
        variables.push((LONE_RANK, format!("{rank}/{size}")));
        // NCCL's groups would ask the store every second whether another rank has failed.
        variables.push(("TORCH_NCCL_ENABLE_MONITORING", "0".to_owned()));
        variables
    }
}

/// What was asked of a run.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Request {
    /// The card.
    pub(crate) card: Card,
    /// The rank of many that its one process stands for.
    pub(crate) lone_rank: Option<LoneRank>,
    /// Optimizer steps; 0 means to the end.
    pub(crate) steps: u64,
    /// Forward passes of a script without an optimizer; 0 means to the end, unless a number of steps was asked for.
    pub(crate) forward_steps: u64,
    /// Whether the evaluation and the largest batch must run too.
    pub(crate) cover_full: bool,
    /// How the virtual card's clock goes.
    pub(crate) clock: ClockMode,
    /// Whether the host's computing moves it.
    pub(crate) host_time: HostTime,
    /// When to give up.
    pub(crate) timeout: Option<Duration>,
    /// Where sizes that a kernel would compute are taken.
    pub(crate) sizes: Sizes,
    /// What stands in for what this machine lacks.
    pub(crate) synthetic: Synthetic,
    /// What other programs hold of each virtual card.
    pub(crate) other_processes: u64,
    /// How that is known.
    pub(crate) others: Origin,
    /// What is done to the training from outside; nothing where it is only watched.
    pub(crate) planned: Option<Planned>,
    /// Where the recording goes.
    pub(crate) output: Option<PathBuf>,
    /// Whether what the script prints is shown as it comes.
    pub(crate) show_output: bool,
    /// Whether the run directory stays.
    pub(crate) keep: bool,
    /// Whether what would have helped is tried where memory runs out.
    pub(crate) prove: bool,
    /// The command as it was typed.
    pub(crate) command: Vec<OsString>,
}

impl Request {
    /// What was typed, with the settings behind it.
    pub(crate) fn new(args: RunArgs, settings: &Settings, catalogue: &Catalogue) -> Result<Self, CliError> {
        // A size in the settings belongs to the GPU there, and not to another that was named instead.
        let overruled = args.gpu.is_some() && settings.gpu.is_some();
        let memory = args.memory.or(settings.memory.filter(|_| !overruled));
        let gpu = args.gpu.or_else(|| settings.gpu.clone()).ok_or(CliError::NoGpu)?;
        let card = if gpu.name.eq_ignore_ascii_case(LOCAL) {
            if args.memory.is_some() || args.other_processes.is_some() {
                return Err(CliError::MemoryOfLocal);
            }
            Card::Local(gpu.count)
        } else {
            let GpuChoice { name, count } = &gpu;
            let device = catalogue.find(name)?.clone();
            let device = match memory {
                Some(memory) => device.with_memory(memory),
                None => device,
            };
            Card::Virtual(Box::new(device), *count)
        };
        let (other_processes, others) =
            other_processes(args.other_processes.or(settings.other_processes), &card);
        let lone_rank = LoneRank::new(args.rank, args.world_size, &card)?;
        let asked = args.steps.or(settings.steps);
        let steps = asked.unwrap_or(STEPS);
        let default = (steps > 0).then_some(TIMEOUT);
        let timeout = args.timeout.or(settings.timeout).map_or(default, |timeout| timeout.0);
        Ok(Self {
            card,
            lone_rank,
            steps,
            forward_steps: asked.unwrap_or(0),
            cover_full: args.cover.or(settings.cover).unwrap_or_default() == Cover::Full,
            clock: args.clock.or(settings.clock).unwrap_or_default().into(),
            host_time: args.host_time.or(settings.host_time).unwrap_or_default().into(),
            timeout,
            sizes: args.sizes.or(settings.sizes).unwrap_or_default(),
            synthetic: Synthetic {
                weights: args.synthetic_weights || settings.synthetic_weights,
                data: args
                    .synthetic_data
                    .or_else(|| settings.synthetic_data.clone())
                    .map(|samples| samples.0),
            },
            other_processes,
            others,
            planned: args.plan.as_deref().map(Plan::read).transpose()?.map(|plan| planned(&plan, steps)),
            output: args.output,
            show_output: args.show_output || settings.show_output,
            keep: args.keep,
            prove: !args.no_prove,
            command: args.command,
        })
    }
}

impl Request {
    /// What was typed after `memfit plan`, as a request for one of its runs.
    pub(crate) fn to_plan(
        args: PlanArgs,
        settings: &Settings,
        catalogue: &Catalogue,
    ) -> Result<Self, CliError> {
        let gpu = args.gpu.or_else(|| settings.gpu.clone()).ok_or(CliError::NoGpu)?;
        if gpu.name.eq_ignore_ascii_case(LOCAL) {
            return Err(CliError::PlanForLocal);
        }
        let device = catalogue.find(&gpu.name)?.clone();
        let device = match args.memory {
            Some(memory) => device.with_memory(memory),
            None => device,
        };
        let data = args.synthetic_data.or_else(|| settings.synthetic_data.clone());
        let card = Card::Virtual(Box::new(device), gpu.count);
        let (other_processes, others) = other_processes(settings.other_processes, &card);
        Ok(Self {
            card,
            lone_rank: None,
            steps: STEPS,
            forward_steps: STEPS,
            cover_full: false,
            clock: ClockMode::default(),
            host_time: HostTime::default(),
            timeout: args.timeout.or(settings.timeout).map_or(Some(TIMEOUT), |timeout| timeout.0),
            sizes: Sizes::default(),
            synthetic: Synthetic {
                weights: args.synthetic_weights || settings.synthetic_weights,
                data: data.map(|samples| samples.0),
            },
            other_processes,
            others,
            planned: None,
            output: None,
            show_output: false,
            keep: false,
            prove: false,
            command: args.command,
        })
    }
}

/// What other programs hold of a card: what somebody said, or what they held when it was calibrated.
fn other_processes(stated: Option<Bytes>, card: &Card) -> (u64, Origin) {
    let calibrated = match card {
        Card::Virtual(device, _) => device.outside.as_ref().and_then(|seen| seen.parts.other_processes),
        Card::Local(_) => None,
    };
    match stated {
        Some(bytes) => (bytes.get(), Origin::Stated),
        None => (calibrated.map_or(0, Bytes::get), Origin::Calibrated),
    }
}

/// What the probe is told of a plan.
pub(crate) fn planned(plan: &Plan, steps: u64) -> Planned {
    let own = plan.made_for.own_accumulation.max(1);
    let pieces = match (plan.made_for.batch, plan.micro_batch) {
        (Some(batch), Some(micro_batch)) => batch.div_ceil(micro_batch.max(1)),
        _ => 1,
    };
    let planned = Planned {
        pieces,
        own_accumulation: own,
        micro_batch: plan.micro_batch,
        batch: plan.made_for.batch,
        by_name: !plan.made_for.batch_names.is_empty(),
        infers: plan.made_for.inference,
        accumulate: (plan.accumulate / own).max(1),
        levers: plan
            .levers
            .iter()
            .map(|setting| LeverSetup {
                name: setting.lever.name().to_owned(),
                value: serde_json::to_value(&setting.value).unwrap_or_default(),
            })
            .collect(),
        ..Planned::default()
    };
    // To the end means all of it; and without steps every piece is a pass of its own.
    if steps == 0 || planned.infers { planned } else { planned.shortened() }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Verb};

    fn request(words: &str, settings: &Settings) -> Result<Request, CliError> {
        let words = format!("memfit run {words} -- python train.py");
        let args = Args::try_parse_from(words.split_whitespace()).unwrap();
        let Verb::Run(args) = args.verb else { panic!("not a run") };
        Request::new(*args, settings, &Catalogue::builtin().unwrap())
    }

    fn capacity(words: &str, settings: &Settings) -> u64 {
        request(words, settings).unwrap().card.info().capacity
    }

    #[test]
    fn what_is_typed_wins_over_settings() {
        let settings = Settings {
            gpu: Some("t4:2".parse().unwrap()),
            memory: Some(Bytes::from_gib(12)),
            steps: Some(7),
            ..Settings::default()
        };
        let from_settings = request("", &settings).unwrap();
        assert_eq!(from_settings.card.info().count, 2);
        assert_eq!(from_settings.card.info().capacity, 12 << 30);
        assert_eq!((from_settings.steps, from_settings.forward_steps), (7, 7));
        assert_eq!(request("--steps 1", &settings).unwrap().steps, 1);
        assert_eq!(capacity("--memory 8GiB", &settings), 8 << 30);
        // The settings' size is the settings' card's.
        assert_eq!(capacity("--gpu l4", &settings), capacity("--gpu l4", &Settings::default()));
        let size_alone = Settings { memory: Some(Bytes::from_gib(12)), ..Settings::default() };
        assert_eq!(capacity("--gpu l4", &size_alone), 12 << 30);
    }

    #[test]
    fn nobody_waits_for_ever_unless_they_asked_for_the_end() {
        let timeout = |words: &str| request(words, &Settings::default()).unwrap().timeout;
        assert_eq!(timeout("--gpu t4"), Some(TIMEOUT));
        assert_eq!(timeout("--gpu t4 --steps 0"), None);
        assert_eq!(timeout("--gpu t4 --timeout 0"), None);
        assert_eq!(timeout("--gpu t4 --steps 0 --timeout 5s"), Some(Duration::from_secs(5)));
    }

    #[test]
    fn forward_passes_are_counted_only_where_steps_were_asked_for() {
        let forward = |words: &str| request(words, &Settings::default()).unwrap().forward_steps;
        assert_eq!(forward("--gpu t4"), 0);
        assert_eq!(forward("--gpu t4 --steps 2"), 2);
    }

    #[test]
    fn a_rank_of_many_is_placed_as_a_launcher_would() {
        let place = |words: &str| {
            let lone = request(words, &Settings::default()).unwrap().lone_rank.unwrap();
            let environment = lone.environment();
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", LONE_RANK].map(|wanted| {
                environment.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone()).unwrap()
            })
        };
        assert_eq!(place("--gpu h100 --world-size 512"), ["0", "512", "0", "1", "0", "0/512"]);
        assert_eq!(place("--gpu h100:8 --rank 11 --world-size 512"), ["11", "512", "3", "8", "1", "11/512"]);
        assert_eq!(place("--gpu h100:8 --rank 9 --world-size 10"), ["9", "10", "1", "2", "1", "9/10"]);
        let wrong = |words: &str| request(words, &Settings::default()).unwrap_err();
        assert!(matches!(
            wrong("--gpu t4 --rank 4 --world-size 4"),
            CliError::NoSuchRank { rank: 4, size: 4 }
        ));
        assert!(matches!(wrong("--gpu t4 --world-size 0"), CliError::NoSuchRank { .. }));
        assert!(matches!(wrong("--gpu local --world-size 4"), CliError::LoneRankOfLocal));
    }

    #[test]
    fn the_real_card_is_local_and_has_the_memory_it_has() {
        assert!(request("--gpu local", &Settings::default()).unwrap().card.is_local());
        let error = request("--gpu local --memory 8GiB", &Settings::default());
        assert!(matches!(error, Err(CliError::MemoryOfLocal)));
        assert!(matches!(request("", &Settings::default()), Err(CliError::NoGpu)));
    }
}
