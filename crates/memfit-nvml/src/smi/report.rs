//! Output of `-L` and `-q`.

use std::fmt::Write as _;

use super::mebibytes;
use super::now::Now;
use crate::cards::Card;
use crate::status::Outcome;
use crate::{devices, memory, system};

/// Formats a line for each device.
pub(super) fn list(cards: &[Card]) -> String {
    let mut text = String::new();
    for card in cards {
        let _ = writeln!(text, "GPU {}: {} (UUID: {})", card.index, card.device.name, devices::uuid(*card));
    }
    text
}

/// Formats everything known about each device, or only the sections of these names, as for `-d`.
pub(super) fn report(cards: &[Card], sections: &[String]) -> Outcome<String> {
    let shown =
        |name: &str| sections.is_empty() || sections.iter().any(|section| section.eq_ignore_ascii_case(name));
    let mut text = format!(
        "\n==============NVSMI LOG==============\n\n{}\n",
        row(0, "Timestamp", &Now::read().in_words())
    );
    let cuda = format!("{}.{}", system::CUDA_VERSION / 1000, system::CUDA_VERSION % 1000 / 10);
    text += &row(0, "Driver Version", system::DRIVER_VERSION);
    text += &row(0, "CUDA Version", &cuda);
    text.push('\n');
    text += &row(0, "Attached GPUs", &cards.len().to_string());
    for card in cards {
        let _ = writeln!(text, "GPU {}", devices::bus_id(*card));
        if sections.is_empty() {
            text += &row(1, "Product Name", &card.device.name);
            text += &row(1, "Persistence Mode", "Enabled");
            text += &row(1, "GPU UUID", &devices::uuid(*card));
            text += &row(1, "Minor Number", &card.index.to_string());
            text += "    PCI\n";
            text += &row(2, "Bus Id", &devices::bus_id(*card));
        }
        if shown("MEMORY") {
            let memory = memory::memory(*card)?;
            text += "    FB Memory Usage\n";
            for (name, bytes) in
                [("Total", memory.total), ("Reserved", 0), ("Used", memory.used), ("Free", memory.free)]
            {
                text += &row(2, name, &format!("{} MiB", mebibytes(bytes)));
            }
        }
        if shown("COMPUTE") {
            text += &row(1, "Compute Mode", "Default");
        }
        if shown("UTILIZATION") {
            text += "    Utilization\n";
            text += &row(2, "Gpu", "0 %");
            text += &row(2, "Memory", "0 %");
        }
        if shown("ECC") {
            text += "    Ecc Mode\n";
            text += &row(2, "Current", if card.device.ecc { "Enabled" } else { "Disabled" });
        }
        if shown("CLOCK") {
            text += "    Clocks\n";
            for (name, kind) in [("Graphics", 0), ("SM", 1), ("Memory", 2)] {
                text += &row(2, name, &format!("{} MHz", devices::clock(*card, kind)?));
            }
        }
        if shown("PIDS") {
            let processes = memory::processes(*card)?;
            if processes.is_empty() {
                text += &row(1, "Processes", "None");
            } else {
                text += "    Processes\n";
            }
            for (pid, used) in processes {
                text += &row(2, "Process ID", &pid.to_string());
                text += &row(3, "Type", "C");
                text += &row(3, "Name", &system::process_name(pid).unwrap_or_default());
                text += &row(3, "Used GPU Memory", &format!("{} MiB", mebibytes(used)));
            }
        }
        text.push('\n');
    }
    Ok(text)
}

/// Formats a name and its value, indented by `depth` sections.
fn row(depth: usize, name: &str, value: &str) -> String {
    let indent = 4 * depth;
    format!("{:indent$}{name:<width$}: {value}\n", "", width = 50 - indent)
}
