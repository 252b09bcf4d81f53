//! Builds requests for runs from arguments and settings, with names looked up.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use memfit_channel::{ClockMode, HostTime, LeverSetup, LibrarySetup, ParallelSetup, Planned, Synthetic};
use memfit_ci::Script;
use memfit_devices::{Bytes, Catalogue, Origin};
use memfit_plan::{Plan, Setting, framework_environment};
use memfit_run::{Card, LOCAL, LoneRank, Request, Sizes};
use memfit_vocabulary::{Framework, Lever, Parallel};
use serde::Serialize;

use crate::CliError;
use crate::args::{
    CardsArgs, CiArgs, Cover, DataArgs, GpuChoice, PlanArgs, RunArgs, ScriptArgs, ShrinkArgs, Timeout,
};
use crate::settings::Settings;

/// Optimizer steps of a run without `--steps`.
const DEFAULT_STEPS: u64 = 3;
/// The time limit of a run without `--timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(10);

/// The request of `memfit run`.
pub(crate) fn to_run(args: RunArgs, settings: &Settings, catalogue: &Catalogue) -> Result<Request, CliError> {
    // A memory size in the settings belongs to the GPU in the settings, not to one named on the command line.
    let overruled = args.gpu.is_some() && settings.gpu.is_some();
    let memory = args.memory.or(settings.memory.filter(|_| !overruled));
    let gpu = args.gpu.or_else(|| settings.gpu.clone()).ok_or(CliError::NoGpu)?;
    let card = if gpu.name.eq_ignore_ascii_case(LOCAL) {
        if args.memory.is_some() || args.other_processes.is_some() {
            return Err(CliError::MemoryOfLocal);
        }
        Card::Local(gpu.count)
    } else {
        virtual_card(&gpu, memory, catalogue)?
    };
    let (other_processes, other_processes_origin) =
        other_processes(args.other_processes.or(settings.other_processes), &card);
    let plan = args.plan.as_deref().map(Plan::read).transpose()?;
    let by_library = plan.as_ref().filter(|plan| library_of(plan).is_some());
    let world = by_library.and_then(|plan| plan.parallel).map(|parallel| parallel.world());
    let lone_rank = LoneRank::new(args.rank, args.world_size.or(world), &card)?;
    let asked = args.steps.or(settings.steps);
    let steps = asked.unwrap_or(DEFAULT_STEPS);
    let default = (steps > 0).then_some(DEFAULT_TIMEOUT);
    let timeout = args.timeout.or(settings.timeout).map_or(default, |timeout| timeout.0);
    Ok(Request {
        card,
        lone_rank,
        steps,
        forward_steps: asked.unwrap_or(0),
        cover_full: args.cover.or(settings.cover).unwrap_or_default() == Cover::Full,
        clock: args.clock.or(settings.clock).unwrap_or_default().into(),
        host_time: args.host_time.or(settings.host_time).unwrap_or_default().into(),
        timeout,
        sizes: args.sizes.or(settings.sizes).unwrap_or_default(),
        synthetic: synthetic(&args.script, settings),
        other_processes,
        other_processes_origin,
        planned: plan.map(|plan| planned(&plan, steps, args.rank.unwrap_or(0))),
        output: args.output,
        show_output: args.show_output || settings.show_output,
        confidential: args.script.confidential,
        keep: args.keep,
        prove: !args.no_prove,
        measure_loader: None,
        estimated: Vec::new(),
        command: args.command.words,
    })
}

/// The request of `memfit data --loader`: a few steps, then the loader's measurement.
pub(crate) fn to_measure(
    args: DataArgs,
    settings: &Settings,
    catalogue: &Catalogue,
) -> Result<Request, CliError> {
    let gpu = args.gpu.or_else(|| settings.gpu.clone()).ok_or(CliError::NoGpu)?;
    if gpu.name.eq_ignore_ascii_case(LOCAL) {
        return Err(CliError::LoaderForLocal);
    }
    let card = virtual_card(&gpu, None, catalogue)?;
    let mut command = args.loader;
    if command.first().is_some_and(|first| Path::new(first).extension().is_some_and(|ending| ending == "py"))
    {
        command.insert(0, "python".into());
    }
    Ok(Request {
        synthetic: Synthetic { weights: settings.synthetic_weights, data: None },
        show_output: settings.show_output,
        measure_loader: args.measure.0,
        ..of_a_few_steps(card, args.timeout.or(settings.timeout), command)
    })
}

/// The request for one of the runs of `memfit plan`.
pub(crate) fn to_plan(
    args: PlanArgs,
    settings: &Settings,
    catalogue: &Catalogue,
) -> Result<Request, CliError> {
    let gpu = args.gpu.or_else(|| settings.gpu.clone()).ok_or(CliError::NoGpu)?;
    if gpu.name.eq_ignore_ascii_case(LOCAL) {
        return Err(CliError::PlanForLocal);
    }
    let card = virtual_card(&gpu, args.memory, catalogue)?;
    let card = match card {
        Card::Virtual(device, count) if !args.link.is_empty() || args.nodes > 1 => {
            Card::Virtual(Box::new(device.linked(&args.link, count, args.nodes)?), count)
        }
        card => card,
    };
    let (other_processes, other_processes_origin) = other_processes(settings.other_processes, &card);
    Ok(Request {
        synthetic: synthetic(&args.script, settings),
        other_processes,
        other_processes_origin,
        ..of_a_few_steps(card, args.timeout.or(settings.timeout), args.command.words)
    })
}

/// The request for one of the runs of `memfit cards`; its GPU is a placeholder.
pub(crate) fn to_compare(
    args: &CardsArgs,
    settings: &Settings,
    catalogue: &Catalogue,
) -> Result<Request, CliError> {
    let any = catalogue.devices().first().ok_or(CliError::NoCardLeft)?.clone();
    let card = Card::Virtual(Box::new(any), 1);
    let asked = args.steps.or(settings.steps.filter(|steps| *steps > 0));
    let (other_processes, other_processes_origin) = other_processes(settings.other_processes, &card);
    Ok(Request {
        steps: asked.unwrap_or(DEFAULT_STEPS),
        forward_steps: asked.unwrap_or(0),
        synthetic: synthetic(&args.script, settings),
        other_processes,
        other_processes_origin,
        ..of_a_few_steps(card, args.timeout.or(settings.timeout), args.command.words.clone())
    })
}

/// The request for a run of one of the scripts of `memfit ci`.
pub(crate) fn to_track(
    script: &Script,
    args: &CiArgs,
    settings: &Settings,
    catalogue: &Catalogue,
) -> Result<Request, CliError> {
    let choice = script.gpu.parse::<GpuChoice>().map_err(|why| CliError::CiSettings {
        file: settings.folder.join("pyproject.toml"),
        why: format!("the GPU `{}` of `{}`: {why}", script.gpu, script.name),
        hint: "`memfit gpus` lists all names; `:2` behind one stands for two of them",
    })?;
    if choice.name.eq_ignore_ascii_case(LOCAL) {
        return Err(CliError::CiForLocal);
    }
    let card = virtual_card(&choice, None, catalogue)?;
    let (other_processes, other_processes_origin) = other_processes(settings.other_processes, &card);
    let asked = script.steps.or(settings.steps.filter(|steps| *steps > 0));
    Ok(Request {
        steps: asked.unwrap_or(DEFAULT_STEPS),
        forward_steps: asked.unwrap_or(0),
        synthetic: synthetic(&args.script, settings),
        other_processes,
        other_processes_origin,
        show_output: settings.show_output,
        ..of_a_few_steps(
            card,
            args.timeout.or(settings.timeout),
            script.command.iter().map(OsString::from).collect(),
        )
    })
}

/// The request for one of the runs of `memfit shrink`.
pub(crate) fn to_shrink(
    args: &ShrinkArgs,
    settings: &Settings,
    catalogue: &Catalogue,
) -> Result<Request, CliError> {
    let gpu = args.gpu.as_ref().or(settings.gpu.as_ref()).ok_or(CliError::NoGpu)?;
    if gpu.name.eq_ignore_ascii_case(LOCAL) {
        return Err(CliError::ShrinkForLocal);
    }
    let card = virtual_card(gpu, args.memory, catalogue)?;
    let asked = args.steps.or(settings.steps.filter(|steps| *steps > 0));
    let (other_processes, other_processes_origin) = other_processes(settings.other_processes, &card);
    Ok(Request {
        steps: asked.unwrap_or(DEFAULT_STEPS),
        synthetic: synthetic(&args.script, settings),
        other_processes,
        other_processes_origin,
        ..of_a_few_steps(card, args.timeout.or(settings.timeout), args.command.words.clone())
    })
}

/// The named GPU of the catalogue, with another amount of memory if given.
fn virtual_card(gpu: &GpuChoice, memory: Option<Bytes>, catalogue: &Catalogue) -> Result<Card, CliError> {
    let card = Card::Virtual(Box::new(catalogue.find(&gpu.name)?.clone()), gpu.count);
    Ok(match memory {
        Some(memory) => card.with_memory(memory),
        None => card,
    })
}

/// The request for a run of a few steps without further options.
fn of_a_few_steps(card: Card, timeout: Option<Timeout>, command: Vec<OsString>) -> Request {
    Request {
        card,
        lone_rank: None,
        steps: DEFAULT_STEPS,
        forward_steps: DEFAULT_STEPS,
        cover_full: false,
        clock: ClockMode::default(),
        host_time: HostTime::default(),
        timeout: timeout.map_or(Some(DEFAULT_TIMEOUT), |timeout| timeout.0),
        sizes: Sizes::default(),
        synthetic: Synthetic::default(),
        other_processes: 0,
        other_processes_origin: Origin::Stated,
        planned: None,
        output: None,
        show_output: false,
        confidential: false,
        keep: false,
        prove: false,
        measure_loader: None,
        estimated: Vec::new(),
        command,
    }
}

/// Replacements for weights and data that this machine lacks.
fn synthetic(args: &ScriptArgs, settings: &Settings) -> Synthetic {
    Synthetic {
        weights: args.synthetic_weights || settings.synthetic_weights,
        data: args
            .synthetic_data
            .as_ref()
            .map(|described| described.samples.clone())
            .or_else(|| settings.synthetic_data.clone())
            .map(|samples| samples.0),
    }
}

/// Memory of other programs on a GPU: as given, or as measured by the calibration.
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

/// A training library that distributes a script itself.
#[derive(Clone, Copy)]
pub(crate) struct Library<'a> {
    pub(crate) framework: Framework,
    /// Classes of the model's repeated blocks.
    pub(crate) blocks: &'a [String],
}

impl Library<'_> {
    fn setup(self, parallel: &Parallel) -> LibrarySetup {
        let variables = framework_environment(self.framework, parallel, self.blocks).into_iter();
        LibrarySetup {
            ranks: parallel.batches(),
            shards: parallel.shard > 1,
            reshards: parallel.reshard_after_forward,
            blocks: self.blocks.to_vec(),
            environment: variables.map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}

/// A rank's position in a training run that is spread over several GPUs, by memfit or by a library.
pub(crate) fn parallel_setup(
    parallel: &Parallel,
    rank: u32,
    per_machine: u32,
    library: Option<Library<'_>>,
) -> ParallelSetup {
    let world = parallel.world();
    let per_machine = if per_machine == 0 { world } else { per_machine.min(world) };
    ParallelSetup { rank, per_machine, library: library.map(|library| library.setup(parallel)) }
}

/// Levers in the form that the probe expects; the last one spreads the model.
pub(crate) fn lever_setups(settings: &[Setting], parallel: Option<&Parallel>) -> Vec<LeverSetup> {
    let levers = settings.iter().map(|setting| lever_setup(setting.lever, &setting.value));
    levers.chain(parallel.map(|parallel| lever_setup(Lever::Shard, parallel))).collect()
}

/// A lever in the form that the probe expects.
pub(crate) fn lever_setup(lever: Lever, value: &impl Serialize) -> LeverSetup {
    LeverSetup { name: lever.name().to_owned(), value: serde_json::to_value(value).unwrap_or_default() }
}

/// The training library that distributes a plan's script, if one does.
fn library_of(plan: &Plan) -> Option<Library<'_>> {
    let framework = plan.made_for.framework.filter(|_| plan.parallel.is_some_and(|each| each.is_spread()))?;
    Some(Library { framework, blocks: &plan.made_for.block_classes })
}

/// The part of a plan that the probe of a rank needs.
fn planned(plan: &Plan, steps: u64, rank: u32) -> Planned {
    let own = plan.made_for.own_accumulation.max(1);
    let pieces = match (plan.made_for.batch, plan.micro_batch) {
        (Some(batch), Some(micro_batch)) => {
            plan.parallel.unwrap_or_default().share(batch).div_ceil(micro_batch.max(1))
        }
        _ => 1,
    };
    let parallel = plan.parallel.filter(Parallel::is_spread);
    let library = library_of(plan);
    let planned = Planned {
        parallel: parallel
            .map(|parallel| parallel_setup(&parallel, rank, plan.made_for.count as u32, library)),
        pieces,
        own_accumulation: own,
        micro_batch: plan.micro_batch,
        batch: plan.made_for.batch,
        by_name: !plan.made_for.batch_names.is_empty(),
        infers: plan.made_for.inference,
        accumulate: (plan.accumulate / own).max(1),
        levers: lever_setups(&plan.levers, parallel.as_ref().filter(|_| library.is_none())),
        ..Planned::default()
    };
    // A run to the end covers all micro-batches; without optimizer steps, every micro-batch is a separate
    // pass.
    if steps == 0 || planned.infers { planned } else { planned.limited() }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use memfit_channel::env::LONE_RANK;
    use memfit_run::RunError;

    use super::*;
    use crate::args::{Args, Verb};

    fn request(words: &str, settings: &Settings) -> Result<Request, CliError> {
        let words = format!("memfit run {words} -- python train.py");
        let args = Args::try_parse_from(words.split_whitespace()).unwrap();
        let Verb::Run(args) = args.verb else { panic!("not a run") };
        to_run(*args, settings, &Catalogue::builtin().unwrap())
    }

    fn capacity(words: &str, settings: &Settings) -> u64 {
        request(words, settings).unwrap().card.info().capacity
    }

    #[test]
    fn options_win_over_settings() {
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
        // The memory size in the settings belongs to the settings' GPU.
        assert_eq!(capacity("--gpu l4", &settings), capacity("--gpu l4", &Settings::default()));
        let size_alone = Settings { memory: Some(Bytes::from_gib(12)), ..Settings::default() };
        assert_eq!(capacity("--gpu l4", &size_alone), 12 << 30);
    }

    #[test]
    fn nobody_waits_for_ever_unless_they_asked_for_the_end() {
        let timeout = |words: &str| request(words, &Settings::default()).unwrap().timeout;
        assert_eq!(timeout("--gpu t4"), Some(DEFAULT_TIMEOUT));
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
            CliError::Run(RunError::NoSuchRank { rank: 4, size: 4 })
        ));
        assert!(matches!(wrong("--gpu t4 --world-size 0"), CliError::Run(RunError::NoSuchRank { .. })));
        assert!(matches!(wrong("--gpu local --world-size 4"), CliError::Run(RunError::LoneRankOfLocal)));
    }

    #[test]
    fn the_real_card_is_local_and_has_the_memory_it_has() {
        assert!(request("--gpu local", &Settings::default()).unwrap().card.is_local());
        let error = request("--gpu local --memory 8GiB", &Settings::default());
        assert!(matches!(error, Err(CliError::MemoryOfLocal)));
        assert!(matches!(request("", &Settings::default()), Err(CliError::NoGpu)));
    }
}
