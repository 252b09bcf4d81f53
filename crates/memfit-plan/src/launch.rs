//! The command that starts a plan's processes: `torchrun`, alone or under Slurm.

use std::path::Path;

use memfit_vocabulary::{launcher_words, release, shell_word};

use crate::framework::framework_environment;
use crate::plan::Plan;

/// Port on which the machines of a training run find each other.
const PORT: u16 = 29500;

/// Program that starts the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, started by hand on each machine.
    #[default]
    Torchrun,
    /// `srun` in an allocation of Slurm, which starts `torchrun` on each machine.
    Slurm,
}

/// Reason why a plan cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No command.
    #[error("there is no command to launch")]
    NoCommand,
    /// The command is a launcher.
    #[error("`{program}` is a launcher itself")]
    IsLauncher {
        /// Program.
        program: String,
    },
    /// memfit cannot apply such a plan.
    #[error("the plan has `{degree} = {value}`, which memfit cannot apply to a script")]
    NotApplicable {
        /// Degree.
        degree: &'static str,
        /// Value.
        value: u32,
    },
    /// The number of ranks does not match the machines.
    #[error("the plan has {world} ranks, but {nodes} × {count} GPUs make {}", nodes * count)]
    OtherWorld {
        /// Ranks.
        world: u64,
        /// Machines.
        nodes: u64,
        /// GPUs per machine.
        count: u64,
    },
}

impl LaunchError {
    /// Advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoCommand | Self::IsLauncher { .. } => {
                "give the script's own command: `memfit launch PLAN -- python train.py`"
            }
            Self::NotApplicable { .. } => {
                "`memfit plan --gpu NAME:N -o PLAN` makes a plan that memfit can apply"
            }
            Self::OtherWorld { .. } => {
                "correct `count` and `nodes` under [made_for], or make a new plan with `memfit plan`"
            }
        }
    }
}

/// A part of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// An environment variable with its value, before the command.
    Assignment(&'static str, String),
    /// Text, quoted where the shell requires it.
    Text(String),
    /// A shell expression, in double quotes.
    Expression(&'static str),
}

/// A command line that starts all processes of one machine, or of all under Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    before: Option<&'static str>,
    words: Vec<Word>,
    /// Machines on which the command has to be started.
    pub machines: u64,
    /// Environment variable that must be set to the first machine's name.
    pub needs: Option<&'static str>,
}

impl Launch {
    /// Builds the command line.
    pub fn new(plan: &Plan, launcher: Launcher, command: &[String]) -> Result<Self, LaunchError> {
        let training = script(command)?;
        let parallel = plan.parallel.unwrap_or_default();
        if parallel.context > 1 {
            return Err(LaunchError::NotApplicable { degree: "context", value: parallel.context });
        }
        let world = u64::from(parallel.world());
        let own_gpu = sees_own_gpu(plan.made_for.torch.as_deref());
        let nodes = plan.made_for.nodes.unwrap_or(1).max(1);
        // A hand-written plan may omit the number of GPUs per machine.
        let count = match plan.made_for.count {
            0 => world / nodes,
            count => count,
        };
        let text = |words: &[&str]| words.iter().map(|&word| Word::Text(word.to_owned())).collect::<Vec<_>>();
        let library = plan.made_for.framework.filter(|_| world > 1);
        let of_library = library
            .map(|framework| framework_environment(framework, &parallel, &plan.made_for.block_classes));
        let environment = plan
            .environment()
            .map(|(name, value)| (name, value.to_owned()))
            .chain(of_library.into_iter().flatten())
            .map(|(name, value)| Word::Assignment(name, value));
        if world == 1 {
            let words = environment.chain(command.iter().cloned().map(Word::Text)).collect();
            return Ok(Self { before: None, words, machines: 1, needs: None });
        }
        if nodes * count != world {
            return Err(LaunchError::OtherWorld { world, nodes, count });
        }
        let (nodes_text, count_text) = (nodes.to_string(), count.to_string());
        let mut words: Vec<Word> = environment.collect();
        let slurm = launcher == Launcher::Slurm;
        if slurm {
            words.extend(text(&["srun", "--nodes", &nodes_text, "--ntasks-per-node", "1"]));
            words.extend(text(&["--gpus-per-node", &count_text]));
        }
        words.extend(training.torchrun.into_iter().map(Word::Text));
        let (mut before, mut needs) = (None, None);
        if nodes == 1 {
            words.extend(text(&["--standalone"]));
        } else {
            words.extend(text(&["--nnodes", &nodes_text, "--rdzv-backend", "c10d", "--rdzv-id"]));
            if slurm {
                before = Some(r#"head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"#);
                words.push(Word::Expression("$SLURM_JOB_ID"));
                words.extend([Word::Text("--rdzv-endpoint".to_owned()), Word::Expression("$head")]);
            } else {
                needs = Some("MASTER_ADDR");
                words.extend(text(&["memfit", "--rdzv-endpoint"]));
                words.push(Word::Expression("$MASTER_ADDR"));
            }
        }
        words.extend(text(&["--nproc-per-node", &count_text]));
        words.extend(text(own_gpu));
        words.extend(training.rest.into_iter().map(Word::Text));
        let machines = if slurm { 1 } else { nodes };
        Ok(Self { before, words, machines, needs })
    }

    /// The command line for a shell.
    pub fn to_text(&self) -> String {
        let words: Vec<String> = self
            .words
            .iter()
            .map(|word| match word {
                Word::Assignment(name, value) => format!("{name}={}", shell_word(value)),
                Word::Text(text) => shell_word(text),
                // A job number is an id, not a host: it gets no port.
                Word::Expression(name) if *name == "$SLURM_JOB_ID" => format!("\"{name}\""),
                Word::Expression(name) => format!("\"{name}:{PORT}\""),
            })
            .collect();
        let before = self.before.map(|line| format!("{line}\n")).unwrap_or_default();
        format!("{before}{}", words.join(" "))
    }
}

/// The option with which each process sees its own GPU as `cuda:0`, so that `model.to("cuda")` works
/// unchanged. PyTorch has it since 2.10; with earlier releases the script has to use the GPU of
/// `LOCAL_RANK`, or `memfit.Step` refuses.
fn sees_own_gpu(torch: Option<&str>) -> &'static [&'static str] {
    match torch.and_then(release) {
        Some(release) if release < (2, 10) => &[],
        _ => &["--virtual-local-rank"],
    }
}

/// A script's command, split up for `torchrun`.
struct Training {
    /// The start of torchrun's command line.
    torchrun: Vec<String>,
    /// The words after its own options.
    rest: Vec<String>,
}

fn script(command: &[String]) -> Result<Training, LaunchError> {
    let (program, rest) = command.split_first().ok_or(LaunchError::NoCommand)?;
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    if ["accelerate", "deepspeed", "srun", "mpirun"].contains(&name.as_ref())
        || launcher_words(command).is_some()
    {
        return Err(LaunchError::IsLauncher { program: name.into_owned() });
    }
    let torchrun = vec!["torchrun".to_owned()];
    if name.ends_with(".py") {
        return Ok(Training { torchrun, rest: command.to_vec() });
    }
    let digits = name.strip_prefix("python").map(|version| version.trim_end_matches('t'));
    let is_python =
        digits.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    // torchrun itself starts Python with `-u`.
    let rest = match rest.split_first() {
        Some((first, rest)) if is_python && first == "-u" => rest,
        _ => rest,
    };
    let plain = rest.first().is_some_and(|first| first == "-m" || !first.starts_with('-'));
    if !(is_python && plain) {
        let rest = std::iter::once("--no-python".to_owned()).chain(command.iter().cloned()).collect();
        return Ok(Training { torchrun, rest });
    }
    let torchrun = if program.contains('/') {
        vec![program.clone(), "-m".to_owned(), "torch.distributed.run".to_owned()]
    } else {
        torchrun
    };
    Ok(Training { torchrun, rest: rest.to_vec() })
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::{Framework, Label, Lever, Parallel, Value};

    use super::*;
    use crate::plan::MadeFor;
    use crate::setting::Setting;

    fn plan(shard: u32, count: u64, nodes: Option<u64>) -> Plan {
        Plan {
            parallel: Some(Parallel { shard, ..Parallel::default() }),
            made_for: MadeFor { count, nodes, ..MadeFor::default() },
            ..Plan::as_is()
        }
    }

    fn line(plan: &Plan, launcher: Launcher, command: &str) -> Result<String, LaunchError> {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        Launch::new(plan, launcher, &words).map(|launch| launch.to_text())
    }

    #[test]
    fn one_machine_needs_no_address() {
        let eight = plan(8, 8, None);
        let check = |command: &str, wanted: &str| {
            assert_eq!(line(&eight, Launcher::Torchrun, command).unwrap(), wanted, "{command}");
        };
        check(
            "python train.py --lr 1e-3",
            "torchrun --standalone --nproc-per-node 8 --virtual-local-rank train.py --lr 1e-3",
        );
        check(
            "python3.12 -u train.py",
            "torchrun --standalone --nproc-per-node 8 --virtual-local-rank train.py",
        );
        check(
            "python -m package.train",
            "torchrun --standalone --nproc-per-node 8 --virtual-local-rank -m package.train",
        );
        check("./train.py", "torchrun --standalone --nproc-per-node 8 --virtual-local-rank ./train.py");
        check(
            "/v/bin/python train.py",
            "/v/bin/python -m torch.distributed.run --standalone --nproc-per-node 8 --virtual-local-rank train.py",
        );
        check(
            "python -X dev train.py",
            "torchrun --standalone --nproc-per-node 8 --virtual-local-rank --no-python python -X dev train.py",
        );
        check(
            "bash run.sh",
            "torchrun --standalone --nproc-per-node 8 --virtual-local-rank --no-python bash run.sh",
        );
        let slurm = line(&eight, Launcher::Slurm, "python train.py").unwrap();
        assert_eq!(
            slurm,
            "srun --nodes 1 --ntasks-per-node 1 --gpus-per-node 8 torchrun --standalone --nproc-per-node 8 --virtual-local-rank train.py"
        );
    }

    #[test]
    fn a_library_that_shards_is_told_so_by_variables() {
        let mut eight = plan(8, 8, None);
        eight.made_for.framework = Some(Framework::Accelerate);
        eight.made_for.block_classes = vec!["Block".to_owned(), "Head".to_owned()];
        let text = line(&eight, Launcher::Torchrun, "python t.py").unwrap();
        assert_eq!(
            text,
            "ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP FSDP_RESHARD_AFTER_FORWARD=true FSDP_TRANSFORMER_CLS_TO_WRAP=Block,Head torchrun --standalone --nproc-per-node 8 --virtual-local-rank t.py"
        );
        // One process is not distributed.
        eight.parallel = None;
        assert_eq!(line(&eight, Launcher::Torchrun, "python t.py").unwrap(), "python t.py");
    }

    #[test]
    fn older_torchrun_gets_no_virtual_local_rank() {
        for (torch, given) in
            [("2.9.1+cu128", false), ("2.10.0", true), ("2.15.0+cu132", true), ("custom", true)]
        {
            let mut eight = plan(8, 8, None);
            eight.made_for.torch = Some(torch.to_owned());
            let text = line(&eight, Launcher::Torchrun, "python t.py").unwrap();
            assert_eq!(text.contains("--virtual-local-rank"), given, "{torch}");
        }
    }

    #[test]
    fn several_machines_meet_at_the_first() {
        let many = plan(32, 8, Some(4));
        assert_eq!(
            line(&many, Launcher::Torchrun, "python train.py").unwrap(),
            "torchrun --nnodes 4 --rdzv-backend c10d --rdzv-id memfit --rdzv-endpoint \"$MASTER_ADDR:29500\" --nproc-per-node 8 --virtual-local-rank train.py"
        );
        assert_eq!(
            line(&many, Launcher::Slurm, "python train.py").unwrap(),
            "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\nsrun --nodes 4 --ntasks-per-node 1 --gpus-per-node 8 torchrun --nnodes 4 --rdzv-backend c10d --rdzv-id \"$SLURM_JOB_ID\" --rdzv-endpoint \"$head:29500\" --nproc-per-node 8 --virtual-local-rank train.py"
        );
    }

    #[test]
    fn a_hand_written_plan_and_one_for_one_gpu_are_launched() {
        let by_hand = plan(4, 0, None);
        assert!(line(&by_hand, Launcher::Torchrun, "python t.py").unwrap().contains("--nproc-per-node 4"));
        assert_eq!(line(&Plan::as_is(), Launcher::Torchrun, "python t.py").unwrap(), "python t.py");
    }

    #[test]
    fn what_has_to_be_set_before_the_start_is() {
        let settings =
            vec![Setting { lever: Lever::ExpandableSegments, value: Value::default(), label: Label::Exact }];
        let text = |plan: &Plan| line(plan, Launcher::Torchrun, "python t.py").unwrap();
        assert_eq!(
            text(&Plan { levers: settings.clone(), ..Plan::as_is() }),
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python t.py"
        );
        let spread = text(&Plan { levers: settings, ..plan(2, 2, None) });
        assert!(
            spread.starts_with("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --"),
            "{spread}"
        );
    }

    #[test]
    fn words_reach_the_script_as_they_are() {
        let words: Vec<String> =
            ["python", "train.py", "--name", "it's a $RUN", ""].map(str::to_owned).into();
        let text = Launch::new(&plan(2, 2, None), Launcher::Torchrun, &words).unwrap().to_text();
        assert!(text.ends_with(r"train.py --name 'it'\''s a $RUN' ''"), "{text}");
    }

    #[test]
    fn plans_that_cannot_be_launched_are_refused() {
        let error = |plan: &Plan, command: &str| line(plan, Launcher::Torchrun, command).unwrap_err();
        let eight = plan(8, 8, None);
        assert_eq!(error(&eight, ""), LaunchError::NoCommand);
        assert!(matches!(error(&eight, "torchrun train.py"), LaunchError::IsLauncher { .. }));
        assert!(matches!(
            error(&eight, "python -m torch.distributed.run train.py"),
            LaunchError::IsLauncher { .. }
        ));
        assert!(matches!(error(&plan(8, 4, None), "python t.py"), LaunchError::OtherWorld { .. }));
        let mut by_sequence = eight;
        by_sequence.parallel = Some(Parallel { context: 8, ..Parallel::default() });
        assert!(matches!(error(&by_sequence, "python t.py"), LaunchError::NotApplicable { value: 8, .. }));
    }
}
