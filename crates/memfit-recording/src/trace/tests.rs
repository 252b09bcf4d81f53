//! Traces as the profiler writes them, truncated, and malformed.

use super::*;
use crate::error::OpenError;

fn event(ts: f64, address: u64, bytes: i64, allocated: u64) -> String {
    format!(
        r#"{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":77,"tid":77,"ts":{ts},
        "args":{{"Total Reserved":2097152,"Total Allocated":{allocated},"Bytes":{bytes},"Addr":{address},"Device Id":0,"Device Type":1,"Ev Idx":5}}}}"#
    )
}

fn trace(events: &[String]) -> String {
    format!(
        r#"{{"schemaVersion": 1, "deviceProperties": [{{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 85094825984}}],
        "distributedInfo": {{"backend": "nccl", "rank": 3, "world_size": 8}}, "traceEvents": [{}], "traceName": "x.json"}}"#,
        events.join(",")
    )
}

fn annotation(name: &str, ts: f64, dur: f64) -> String {
    format!(
        r#"{{"ph":"X","cat":"user_annotation","name":"{name}","pid":77,"tid":78,"ts":{ts},"dur":{dur},"args":{{"External id":1}}}}"#
    )
}

#[test]
fn memory_events_and_annotations_become_a_recording() {
    let base = 0x7f00_0000_0000;
    let text = trace(&[
        annotation("ProfilerStep#1", 10.0, 90.0),
        annotation("Optimizer.step#SGD.step", 60.0, 20.0),
        // Out of order, as multi-threaded writers do it; the last block was allocated before the trace began.
        event(30.5, base + 512, 1024, 1536),
        event(20.0, base, 512, 512),
        event(40.0, base, -512, 1024),
        event(70.0, base + 4096, 512, 1536),
        event(80.0, base + 8192, -512, 1024),
        r#"{"ph":"i","name":"[memory]","ts":1,"args":{"Device Type":0,"Device Id":-1,"Bytes":5,"Addr":1}}"#
            .to_owned(),
        r#"{"ph":"i","name":"[memory]","ts":1,"args":{"Device Type":1,"Bytes":"many"}}"#.to_owned(),
        r#"{"ph":"i","name":"[memory]","ts":1,"args":{"Device Type":1,"Device Id":0}}"#.to_owned(),
        r#"{"ph":"M","name":"process_name","pid":"Spans","tid":"x","ts":0,"args":{"name":"python"}}"#
            .to_owned(),
        "17".to_owned(),
    ]);
    let (recording, problems) = read(text.as_bytes()).unwrap();
    assert!(matches!(problems[..], [Problem::Malformed(1)]), "{problems:?}");
    assert_eq!(recording.origin.device.as_deref(), Some("NVIDIA A100"));
    assert_eq!(recording.origin.capacity, Some(85_094_825_984));
    let [track] = &recording.tracks[..] else { panic!("{:?}", recording.tracks) };
    assert_eq!((track.pid, track.rank), (77, Some(3)));
    let kinds: Vec<String> = track.moments().iter().map(|moment| format!("{:?}", moment.kind)).collect();
    assert_eq!(
        kinds,
        [
            "RangeBegin(0)",
            "Alloc(0)",
            "Alloc(1)",
            "Free(0)",
            "RangeBegin(1)",
            "Phase(Optimizer)",
            "Alloc(2)",
            "RangeEnd(1)",
            "Phase(Other)",
            "RangeEnd(0)",
            "Step(1)"
        ]
    );
    let block = track.block(1).unwrap();
    assert_eq!((block.address, block.bytes, block.freed), (base + 512, 1024, crate::NEVER));
    assert_eq!(track.block(2).unwrap().phase, Phase::Optimizer);
    assert_eq!(track.moment(2).unwrap().allocated, 1536);
    assert!(track.unknown.contains(&Unknown::Before { blocks: 1, bytes: 512 }));
}

#[test]
fn exported_chrome_traces_can_be_read_again() {
    let text =
        trace(&[event(10.0, 4096, 512, 512), event(20.0, 8192, 512, 1024), event(30.0, 4096, -512, 512)]);
    let (first, _) = read(text.as_bytes()).unwrap();
    let mut json = Vec::new();
    crate::write_chrome(&first, &mut json).unwrap();
    let (again, problems) = read(&json[..]).unwrap();
    assert!(problems.is_empty());
    assert_eq!(again.tracks[0].moments(), first.tracks[0].moments());
    let blocks = |recording: &Recording| recording.tracks[0].blocks().iter().collect::<Vec<_>>();
    assert_eq!(blocks(&again), blocks(&first));
}

#[test]
fn a_trace_that_breaks_off_is_used_as_far_as_it_goes() {
    let text = trace(&[event(10.0, 4096, 512, 512), event(20.0, 8192, 512, 1024)]);
    let mut most = 0;
    for length in 0..text.len() {
        match read(&text.as_bytes()[..length]) {
            Ok((recording, problems)) => {
                let now = recording.tracks[0].blocks().len();
                assert!(now >= most && !problems.is_empty(), "at {length}");
                assert!(problems[0].to_string().contains(&format!("at byte {length}")), "{}", problems[0]);
                most = now;
            }
            Err(OpenError::Broken { format: "trace", why }) => assert!(!why.is_empty() && most == 0),
            Err(error) => panic!("at {length}: {error}"),
        }
    }
    assert_eq!(most, 2);
}

#[test]
fn other_json_is_refused_as_a_trace_with_the_reason() {
    for (text, why) in [
        ("{\"traceEvents\": []}", "it has no events"),
        (
            "{\"traceEvents\": [{\"ph\":\"X\"}]}",
            "it has no memory events of a CUDA device: record it with `profile(profile_memory=True)`",
        ),
        (
            "{\"traceEvents\": 5}",
            "at byte 18: invalid type: integer `5`, expected a list of events at line 1 column 18",
        ),
        (
            "\"text\"",
            "at byte 6: invalid type: string \"text\", expected a trace: an object with `traceEvents`, or a list of events at line 1 column 6",
        ),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), format!("this trace cannot be read: {why}"));
    }
    let deep = "[".repeat(1_000_000);
    assert!(read(deep.as_bytes()).unwrap_err().to_string().contains("recursion limit"));
}
