//! `memfit launch`.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use memfit_plan::{Launch, Plan, framework_call};
use memfit_run::{Home, environment};

use crate::args::LaunchArgs;
use crate::{CliError, Exit, Printer};

/// Offset of the exit status of a process that a signal ended, as in shells.
const SIGNALLED: i32 = 128;

/// Prints the command that starts a plan's processes, or runs it.
pub(crate) fn launch(args: &LaunchArgs, home: &Home, printer: &Printer) -> Result<Exit, CliError> {
    let plan = Plan::read(&args.plan)?;
    let mut words = args.command.text();
    if args.run {
        words = with_interpreter(&args.command.words, words, home)?;
    }
    let launch = Launch::new(&plan, args.on.into(), &words)?;
    let text = launch.to_text();
    if !args.run {
        printer.answer(&format!("{text}\n"));
        printer.remark(&applied_by(&plan, &args.plan));
        if launch.machines > 1 {
            printer.remark(&format!(
                "type it on each of the {} machines, with MASTER_ADDR set to the name of the first",
                launch.machines
            ));
        }
        return Ok(Exit::Good);
    }
    let missing = launch.needs.filter(|name| std::env::var_os(name).is_none_or(|value| value.is_empty()));
    if let Some(variable) = missing {
        return Err(CliError::LaunchNeeds { variable });
    }
    let status = Command::new("sh").args(["-c", &text]).status().map_err(|source| CliError::Io {
        what: "start",
        path: "sh".into(),
        source,
    })?;
    let code = status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or_default());
    Ok(Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// What applies the plan, since the command only starts the processes.
fn applied_by(plan: &Plan, file: &Path) -> String {
    let what = match plan.parallel {
        Some(_) => "this starts the processes only",
        None => "the plan is for one GPU, which needs no launcher",
    };
    match plan.made_for.framework.and_then(|framework| framework_call(framework, plan)) {
        Some(call) => format!("{what}: the script needs {call}"),
        None => {
            format!("{what}: the script applies the plan with `memfit.Step(…, plan=\"{}\")`", file.display())
        }
    }
}

/// The command with the interpreter that `memfit run` would choose, so that both use the same torch.
fn with_interpreter(
    command: &[OsString],
    mut words: Vec<String>,
    home: &Home,
) -> Result<Vec<String>, CliError> {
    let resolved = environment::resolve(command, home)?;
    if let Some(first) = words.first_mut()
        && resolved.python.as_ref() == Some(&resolved.program)
    {
        let program = resolved.program.display().to_string();
        if Path::new(first.as_str()).extension().is_some_and(|extension| extension == "py") {
            words.insert(0, program);
        } else {
            *first = program;
        }
    }
    Ok(words)
}
