//! Recording of a small training: two steps of forward pass, backward pass and optimizer on one device, with
//! a failure at the end.

use memfit_recording::{
    Block, Frame, FrameId, MomentKind, Origin, PoolRef, RangeSource, Recording, Span, StackId, StreamRef,
    Totals, Track,
};
use memfit_view::{View, ViewedRecording, lane};
use memfit_vocabulary::{Category, Phase};

pub(crate) const MIB: u64 = 1 << 20;

/// Names used in the recording.
pub(crate) struct Names {
    pub(crate) file: &'static str,
    pub(crate) function: &'static str,
    pub(crate) module: &'static str,
    pub(crate) range: &'static str,
    pub(crate) recording: &'static str,
    pub(crate) command: &'static str,
}

pub(crate) const PLAIN: Names = Names {
    file: "/home/me/project/train.py",
    function: "forward",
    module: "encoder.layers.0",
    range: "epoch 1",
    recording: "run.memfit",
    command: "train.py",
};

struct Training {
    track: Track,
    totals: Totals,
    next: u64,
    stack: StackId,
}

impl Training {
    fn alloc(&mut self, bytes: u64, noted: Option<Category>, module: &str) -> u32 {
        let module = self.track.texts.intern(module);
        self.totals.allocated += bytes;
        let block = Block {
            address: self.next,
            bytes,
            requested: Some(bytes - 100),
            stack: self.stack,
            module,
            owner: module,
            noted,
            ..Block::default()
        };
        self.next += bytes;
        self.track.alloc(&block, self.totals)
    }

    fn free(&mut self, block: u32) {
        self.totals.allocated -= self.track.block(block).expect("it was handed out").bytes;
        self.track.free(block, 0, StackId::NONE, self.totals);
    }

    fn moment(&mut self, kind: MomentKind) {
        self.track.add_moment(kind, 0, StackId::NONE, self.totals);
    }
}

pub(crate) fn training(names: &Names) -> Track {
    let mut track = Track::default();
    let (file, name) = (track.texts.intern(names.file), track.texts.intern(names.function));
    let frames: Vec<FrameId> =
        [31, 72].map(|line| track.stacks.intern_frame(Frame { name, file, line })).into();
    let stack = track.stacks.intern(&frames);
    let mut it =
        Training { track, totals: Totals { reserved: 64 * MIB, ..Totals::default() }, next: 1 << 40, stack };
    let span = Span {
        address: 1 << 40,
        bytes: 64 * MIB,
        born: 0,
        freed: 0,
        stream: StreamRef(0),
        pool: PoolRef(0),
        device: 0,
        small: Some(false),
        expandable: false,
    };
    it.track.reserve(span, stack, it.totals);
    let range = it.track.texts.intern(names.range);
    let range = it.track.begin_range(range, RangeSource::Annotation, 0, None);
    it.alloc(8 * MIB, Some(Category::Parameters), names.module);
    for step in 1..=2 {
        it.moment(MomentKind::Phase(Phase::Forward));
        let kept = it.alloc(12 * MIB, Some(Category::Activations), names.module);
        let short = it.alloc(MIB, Some(Category::Temporary), names.module);
        it.free(short);
        it.moment(MomentKind::Phase(Phase::Backward));
        let gradient = it.alloc(8 * MIB, Some(Category::Gradients), names.module);
        it.free(kept);
        it.moment(MomentKind::Phase(Phase::Optimizer));
        it.free(gradient);
        it.moment(MomentKind::Phase(Phase::Other));
        it.moment(MomentKind::Step(step));
    }
    it.track.end_range(range, None);
    it.moment(MomentKind::Oom(99 * MIB));
    it.track
}

pub(crate) fn recorded(names: &Names) -> ViewedRecording {
    let track = training(names);
    let origin = Origin { command: vec![names.command.to_owned()], ..Origin::default() };
    let recording = Recording { origin, tracks: vec![track] };
    ViewedRecording {
        name: names.recording.to_owned(),
        origin: recording.origin.clone(),
        lanes: vec![lane(&recording.tracks[0], 0)],
        explanation: None,
        remarks: vec![format!("{} is remarkable", names.file)],
    }
}

pub(crate) fn view(names: &Names, confidential: bool) -> View {
    View::new(vec![recorded(names)], confidential)
}
