//! The table that `nvidia-smi` prints without options.

use std::fmt::Write as _;

use super::mebibytes;
use super::now::Now;
use crate::cards::Card;
use crate::status::Outcome;
use crate::{devices, memory, system};

const RULE: &str =
    "+-----------------------------------------------------------------------------------------+";
const COLUMNS: &str =
    "+-----------------------------------------+------------------------+----------------------+";

/// Formats the devices and the processes on them.
pub(super) fn table(cards: &[Card]) -> Outcome<String> {
    let driver = system::DRIVER_VERSION;
    let cuda = format!("{}.{}", system::CUDA_VERSION / 1000, system::CUDA_VERSION % 1000 / 10);
    let mut text = format!("{}\n{RULE}\n", Now::read().in_words());
    let _ =
        writeln!(text, "| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<8} |");
    text += "|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
";
    for card in cards {
        let memory = memory::memory(*card)?;
        let name: String = card.device.name.chars().take(28).collect();
        let ecc = if card.device.ecc { "0" } else { "N/A" };
        let _ = writeln!(
            text,
            "| {:>3}  {name:<28} {:>5} | {:>18} {:>3} | {ecc:>20} |",
            card.index,
            "On",
            devices::bus_id(*card),
            "Off"
        );
        let used = format!("{}MiB / {:>6}MiB", mebibytes(memory.used), mebibytes(memory.total));
        let _ = writeln!(
            text,
            "| {:<39} | {used:>22} | {:>20} |",
            "N/A  N/A   N/A               N/A /  N/A", "0%      Default"
        );
        let _ = writeln!(text, "| {:<39} | {:>22} | {:>20} |\n{COLUMNS}", "", "", "N/A");
    }
    let _ = writeln!(
        text,
        "\n{RULE}
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|"
    );
    let mut any = false;
    for card in cards {
        for (pid, used) in memory::processes(*card)? {
            any = true;
            let name = system::process_name(pid).unwrap_or_default();
            // The end of a long path is more informative than its beginning.
            let long = name.chars().count() > 34;
            let end: String = name.chars().skip(name.chars().count().saturating_sub(31)).collect();
            let name = if long { format!("...{end}") } else { name };
            let used = format!("{}MiB", mebibytes(used));
            let _ =
                writeln!(text, "| {:>4}   N/A  N/A {pid:>16}      C   {name:<34} {used:>10} |", card.index);
        }
    }
    if !any {
        let _ = writeln!(text, "|  {:<87}|", "No running processes found");
    }
    let _ = writeln!(text, "{RULE}");
    Ok(text)
}
