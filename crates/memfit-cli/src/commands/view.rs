//! `memfit view FILE`: shows a recording as a page, in a file or from a server on the loopback interface.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use memfit_allocator::ReplayConditions;
use memfit_recording::Source;
use memfit_view::{Lane, Server, View, ViewedRecording, lane, write_page};

use crate::args::{ExplainArgs, OutputArgs, ViewArgs};
use crate::{CliError, Exit, Printer};

/// Shows a recording.
pub(crate) fn view(args: &ViewArgs, printer: &Printer) -> Result<Exit, CliError> {
    let mut recordings = vec![load(&args.file, args, printer)?];
    if let Some(other) = &args.compare {
        recordings.push(load(other, args, printer)?);
    }
    let view = View::new(recordings, args.confidential);
    match &args.output {
        Some(file) => write(&view, file, printer),
        None => serve(view, args, printer),
    }
}

fn write(view: &View, file: &Path, printer: &Printer) -> Result<Exit, CliError> {
    let failed = |source| CliError::Io { what: "write", path: file.to_owned(), source };
    let mut to = BufWriter::new(File::create(file).map_err(failed)?);
    write_page(view, &mut to).and_then(|()| to.flush()).map_err(failed)?;
    printer.remark(&format!("wrote `{}`; it opens in any browser, and needs no network", file.display()));
    Ok(Exit::Good)
}

fn serve(view: View, args: &ViewArgs, printer: &Printer) -> Result<Exit, CliError> {
    let server = Server::bind(view, args.port.unwrap_or(0)).map_err(CliError::Serve)?;
    let url = server.url();
    printer.answer(&format!("{url}\n"));
    if !args.no_browser && !open_browser(&url) {
        printer.remark("no browser could be started; open the address above in one on this machine");
    }
    printer.remark("the address works on this machine only, and until this command ends: Ctrl-C ends it");
    server.run();
    Ok(Exit::Good)
}

/// Asks the desktop to open an address. The token is briefly visible in a process's arguments; it expires
/// when this command ends.
fn open_browser(url: &str) -> bool {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet = std::process::Stdio::null;
    std::process::Command::new(opener).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().is_ok()
}

/// The explanation, if there is one. The page works without it.
fn explanation(path: &Path, args: &ViewArgs, source: &Source) -> Option<serde_json::Value> {
    if args.no_explain {
        return None;
    }
    let asked = ExplainArgs {
        file: Some(path.to_owned()),
        cause: None,
        capacity: None,
        device: args.device.map(u32::from),
        torch: None,
        confidential: false,
        out: OutputArgs::default(),
    };
    let report = super::explain::report(&asked, source, Vec::new()).ok()?;
    serde_json::to_value(report).ok()
}

fn load(path: &Path, args: &ViewArgs, printer: &Printer) -> Result<ViewedRecording, CliError> {
    let unreadable = |source| CliError::Unopenable { path: path.to_owned(), source: Box::new(source) };
    let (source, problems) = memfit_recording::open(path).map_err(unreadable)?;
    for problem in &problems {
        printer.warning(&problem.to_string());
    }
    let explanation = explanation(path, args, &source);
    let recording = match source {
        Source::Recording(recording) => *recording,
        Source::Snapshot(snapshot) => {
            memfit_allocator::recording(&snapshot, &ReplayConditions::from_snapshot(&snapshot))?.recording
        }
        Source::Texts(_) => return Err(CliError::NothingToShow { path: path.to_owned(), device: None }),
    };
    let mut remarks: Vec<String> = problems.iter().map(ToString::to_string).collect();
    for unknown in recording.tracks.iter().flat_map(|track| &track.unknown) {
        let remark = unknown.to_string();
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    }
    let lanes = recording.tracks.iter().flat_map(|track| {
        let devices = track.devices().into_iter();
        devices
            .filter(|device| args.device.is_none_or(|wanted| wanted == *device))
            .map(|device| lane(track, device))
    });
    let lanes: Vec<Lane> = lanes.collect();
    if lanes.is_empty() {
        return Err(CliError::NothingToShow { path: path.to_owned(), device: args.device });
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ViewedRecording { name, origin: recording.origin, lanes, explanation, remarks })
}
