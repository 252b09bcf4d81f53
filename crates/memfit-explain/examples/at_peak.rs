//! Prints the memory breakdown at each device's peak for the given event logs.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

use memfit_channel::events;
use memfit_recording::Track;

fn main() {
    for path in std::env::args_os().skip(1) {
        let (log, problems) = events::read(path.as_ref()).unwrap();
        for problem in &problems {
            println!("problem: {problem}");
        }
        let track = Track::from_log(&log, None);
        let (moments, blocks, calls) = (track.moments().len(), track.blocks().len(), track.calls.len());
        println!("{moments} moments, {blocks} blocks, {calls} calls, truncated: {}", log.truncated);
        for device in track.devices() {
            let Some(peak) = memfit_explain::at_peak(&track, device) else { continue };
            println!(
                "device {device}: {} allocated, {} reserved, step {} {}, {} unmeasured",
                peak.allocated, peak.reserved, peak.step, peak.phase, peak.unmeasured
            );
            for (category, bytes) in &peak.by_category {
                println!("  {category:<14} {bytes:>14}");
            }
            for module in peak.modules.iter().take(12) {
                println!("    {:<30} {:>14}", module.name, module.bytes);
            }
        }
    }
}
