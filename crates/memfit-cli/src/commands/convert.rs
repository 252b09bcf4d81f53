//! `memfit convert IN OUT`: a recording in another format.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};

use memfit_allocator::{Release, ReplayConditions};
use memfit_explain::Conditions;
use memfit_recording::{
    Recording, RowFormat, Snapshot, Source, Writer, write_chrome, write_perfetto, write_rows,
};
use memfit_run::RunError;

use crate::args::{ConvertArgs, ConvertFormat, ConvertRows};
use crate::input;
use crate::{CliError, Exit, Printer};

/// Writer to a pipe that remembers whether the reader closed it.
struct Pipe<W> {
    to: W,
    closed: bool,
}

impl<W: Write> Pipe<W> {
    fn noted<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        self.closed |= done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        done
    }
}

impl<W: Write> Write for Pipe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write(bytes);
        self.noted(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.to.flush();
        self.noted(done)
    }
}

/// Converts a recording.
pub(crate) fn convert(args: &ConvertArgs, printer: &Printer) -> Result<Exit, CliError> {
    let Some(format) = args.to.or_else(|| ConvertFormat::from_extension(&args.output)) else {
        return Err(CliError::UnknownOutputFormat { path: args.output.clone() });
    };
    let (mut input, problems) = input::read(&args.input)?;
    if args.confidential {
        match &mut input {
            Source::Recording(recording) => recording.make_confidential(),
            Source::Snapshot(snapshot) => snapshot.make_confidential(),
            Source::Texts(_) => {}
        }
    }
    for problem in &problems {
        printer.warning(problem);
    }
    if args.output.as_os_str() == "-" {
        let mut to = BufWriter::new(Pipe { to: io::stdout().lock(), closed: false });
        let written =
            write(input, format, args, printer, &mut to).and_then(|()| to.flush().map_err(CliError::Output));
        // A reader such as `head` may close the pipe early.
        return if to.get_ref().closed { Ok(Exit::Good) } else { written.map(|()| Exit::Good) };
    }
    let mut options = OpenOptions::new();
    let options = if args.force { options.create(true).truncate(true) } else { options.create_new(true) };
    let file = options.write(true).open(&args.output).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CliError::OutputExists { path: args.output.clone() },
        _ => CliError::io("write", &args.output)(error),
    })?;
    let mut to = BufWriter::new(file);
    let written = write(input, format, args, printer, &mut to)
        .and_then(|()| to.flush().map_err(CliError::io("write", &args.output)));
    if written.is_err() {
        // An incomplete file is removed.
        let _ = std::fs::remove_file(&args.output);
    }
    written?;
    printer.remark(&format!("wrote `{}`{}", args.output.display(), format.use_of()));
    Ok(Exit::Good)
}

fn write(
    input: Source,
    format: ConvertFormat,
    args: &ConvertArgs,
    printer: &Printer,
    to: &mut impl Write,
) -> Result<(), CliError> {
    let failed = |error| CliError::io("write", &args.output)(error);
    match (input, format) {
        // A snapshot contains more than a recording, so it is written unconverted.
        (Source::Snapshot(snapshot), ConvertFormat::Pickle) => snapshot.write(to).map_err(failed),
        (Source::Recording(recording), ConvertFormat::Pickle) => {
            let track = chosen(&recording, args, printer)?;
            let conditions = Conditions::from_track(&recording.origin, track, args.torch);
            let limit = conditions.card.limit.or_else(|| {
                let device = track.devices().first().copied()?;
                track.limit_at_oom(device)
            });
            let names_pools = conditions.given.release > Release::WITHOUT_POOL_NAMES;
            Snapshot::from_track_of(track, Writer { names_pools, limit }).write(to).map_err(failed)
        }
        (Source::Snapshot(snapshot), _) => {
            let given = ReplayConditions::from_snapshot_of(&snapshot, args.torch);
            let recording = memfit_allocator::recording(&snapshot, &given)?.recording;
            drop(snapshot);
            for unknown in recording.tracks.iter().flat_map(|track| &track.unknown) {
                printer.remark(&unknown.to_string());
            }
            rest(&recording, format, args, to)
        }
        (Source::Texts(_), _) => Err(CliError::OnlyTexts { path: args.input.clone() }),
        (Source::Recording(recording), _) => rest(&recording, format, args, to),
    }
}

fn rest(
    recording: &Recording,
    format: ConvertFormat,
    args: &ConvertArgs,
    to: &mut impl Write,
) -> Result<(), CliError> {
    let failed = |error| CliError::io("write", &args.output)(error);
    let rows = match args.rows {
        ConvertRows::Blocks => memfit_recording::Rows::Blocks,
        ConvertRows::Events => memfit_recording::Rows::Events,
    };
    match format {
        ConvertFormat::Memfit => recording.write(to).map_err(|source| {
            RunError::Recording { path: args.output.clone(), source: Box::new(source) }.into()
        }),
        ConvertFormat::Perfetto => write_perfetto(recording, to).map_err(failed),
        ConvertFormat::Chrome => write_chrome(recording, to).map_err(failed),
        ConvertFormat::Csv => write_rows(recording, rows, RowFormat::Csv, to).map_err(failed),
        ConvertFormat::Jsonl => write_rows(recording, rows, RowFormat::JsonLines, to).map_err(failed),
        ConvertFormat::Pickle => Ok(()),
    }
}

/// The process to convert, since a snapshot contains only one.
fn chosen<'recording>(
    recording: &'recording Recording,
    args: &ConvertArgs,
    printer: &Printer,
) -> Result<&'recording memfit_recording::Track, CliError> {
    let wanted = |track: &&memfit_recording::Track| args.rank.is_none() || track.rank == args.rank;
    let track = recording.tracks.iter().find(wanted);
    let track = track.ok_or_else(|| CliError::NothingToShow { path: args.input.clone(), device: None })?;
    if args.rank.is_none() && recording.tracks.len() > 1 {
        let count = recording.tracks.len();
        printer.remark(&format!(
            "a snapshot is of one process, and this recording has {count}: `--rank` chooses"
        ));
    }
    Ok(track)
}
