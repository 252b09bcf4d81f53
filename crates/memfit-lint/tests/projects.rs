//! Facts are shared between the files of a project, but not between projects.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use memfit_lint::{Config, check_paths};
use support::files_with_finding;

const EVALUATION: &str = "\
import torch

def evaluate(model, loader):
    model.eval()
    for x in loader:
        out = model(x)
        print(out.mean().item())
";

/// Returns the files in which an evaluation with gradients is found.
fn files_with_eval_finding(files: &[(&str, &str)]) -> Vec<String> {
    files_with_finding("eval-without-no-grad", files)
}

#[test]
fn calls_without_gradients_count_in_the_project_that_makes_them() {
    let caller =
        "import torch\nfrom here import evaluate\nwith torch.no_grad():\n    evaluate(model, loader)\n";
    let files = [
        ("one/pyproject.toml", ""),
        ("one/src/evaluation.py", EVALUATION),
        ("one/scripts/main.py", caller),
        ("two/setup.py", ""),
        ("two/evaluation.py", EVALUATION),
    ];
    assert_eq!(files_with_eval_finding(&files), ["two/evaluation.py"]);
    // Without a marker of a project root, all files form one project.
    let bare: Vec<_> = files
        .iter()
        .copied()
        .filter(|(name, _)| !name.ends_with("pyproject.toml") && !name.ends_with("setup.py"))
        .collect();
    assert_eq!(files_with_eval_finding(&bare), [] as [&str; 0]);
}

#[test]
fn volatile_inputs_of_another_file_turn_gradients_off() {
    let evaluation = "import torch\nfrom features import extract\n\ndef collect(model, loader):\n    model.eval()\n    features = []\n    for x in loader:\n        features.append(extract(model, x))\n    return features\n";
    let extract = |made: &str| {
        format!(
            "import torch\nfrom torch.autograd import Variable\n\ndef extract(model, x):\n    model.eval()\n    x = {made}\n    return model(x).data.cpu()\n"
        )
    };
    let found = |made: &str| {
        files_with_eval_finding(&[("evaluation.py", evaluation), ("features.py", &extract(made))])
    };
    assert_eq!(found("Variable(x)"), ["evaluation.py", "features.py"]);
    assert_eq!(found("Variable(x, volatile=True)"), Vec::<String>::new());
}

#[test]
fn models_that_differentiate_speak_for_their_project() {
    let forces = "\
import torch

class Forces(torch.nn.Module):
    def forward(self, x):
        return gradient(self.net(x), x)

def gradient(energy, x):
    return torch.autograd.grad(energy.sum(), x)
";
    let files = [
        ("one/setup.cfg", ""),
        ("one/models.py", forces),
        ("one/tests/test_evaluation.py", EVALUATION),
        ("two/setup.cfg", ""),
        ("two/evaluation.py", EVALUATION),
    ];
    assert_eq!(files_with_eval_finding(&files), ["two/evaluation.py"]);
}

#[test]
fn imported_files_are_checked_like_others() {
    // Files are checked in the order of their names: one is imported before its own check, the other after.
    let broken = "import torch\nx = = 1  # memfit: ignore[retain-graph-in-loop] not needed\n";
    let caller = |module: &str| {
        format!(
            "import torch\nfrom {module} import evaluate, x\nfor epoch in range(3):\n    evaluate(model, loader)\n"
        )
    };
    let (before, after) = (caller("b_evaluation"), caller("a_evaluation"));
    let evaluation = format!("{EVALUATION}\n{broken}");
    let files = [
        ("a_evaluation.py", evaluation.as_str()),
        ("a_main.py", &before),
        ("b_evaluation.py", &evaluation),
        ("c_main.py", &after),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let config = Config { select: vec!["all".to_owned()], ..Config::default() };
    let reported = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|name| folder.path().join(name)).collect();
        let report = check_paths(&paths, &config).unwrap();
        let files = report.files.iter().filter(|file| file.path.ends_with("b_evaluation.py"));
        files.map(|file| format!("{:?} {:?}", file.findings, file.problems)).collect::<Vec<_>>()
    };
    let alone = reported(&["b_evaluation.py"]);
    assert!(alone[0].contains("eval-without-no-grad") && alone[0].contains("unused"), "{alone:?}");
    assert_eq!(reported(&["a_main.py", "b_evaluation.py", "c_main.py"]), alone);
    assert_eq!(reported(&files.map(|(name, _)| name)), alone);
}

/// Ids of another file's forward passes are local to it: those in a returned tuple must not be confused with
/// freed passes of this file.
#[test]
fn values_that_another_file_returns_carry_the_graphs_of_its_passes() {
    let losses = "\
import torch
from torch import nn
net = nn.Linear(4, 4)

def both(real, fake):
    parts = []
    for x in (real, fake):
        parts.append(net(x).mean())
    first, second = net(real), net(fake)
    return first.mean() + second.mean(), parts, second
";
    let train = "\
import torch
from torch import nn
from losses import both

def train(rank, epoch, loader, net_g, net_d, optim_g, optim_d):
    for x, y in loader:
        x, y = x.cuda(rank, non_blocking=True), y.cuda(rank, non_blocking=True)
        fake = net_g(x)
        real_score, fake_score = net_d(x), net_d(fake.detach())
        loss_d, parts, last = both(real_score, fake_score)
        optim_d.zero_grad()
        loss_d.backward()
        optim_d.step()
        real_score, fake_score = net_d(x), net_d(fake)
        loss_g, parts, last = both(real_score, fake_score)
        optim_g.zero_grad()
        loss_g.backward()
        last.mean().backward()
        optim_g.step()
";
    // Ids are assigned in order; whatever ids they have there, they denote other passes.
    for count in 0..20 {
        let others = "    net(real)\n".repeat(count);
        let losses = losses.replace("    parts = []\n", &format!("    parts = []\n{others}"));
        let files = [("losses.py", losses.as_str()), ("train.py", train)];
        assert_eq!(files_with_finding("recurrent-state-not-detached", &files), [] as [&str; 0], "{count}");
    }
}

#[test]
fn advice_that_came_with_a_later_release_is_not_given() {
    let training = "import torch\nfrom torch.utils.checkpoint import checkpoint\n\
                    with torch.cuda.amp.autocast():\n    y = checkpoint(block, x)\n";
    let files = [
        ("old/setup.py", "install_requires=['torch==1.8.1']"),
        ("old/src/train.py", training),
        ("middle/setup.py", ""),
        ("middle/requirements.txt", "torch>=1.12,<2.0\n"),
        ("middle/train.py", training),
        ("new/setup.py", "install_requires=['torch>=1.8']"),
        ("new/train.py", training),
    ];
    assert_eq!(files_with_finding("deprecated-cuda-amp", &files), ["new/train.py"]);
    let found = files_with_finding("checkpoint-without-use-reentrant", &files);
    assert_eq!(found, ["middle/train.py", "new/train.py"]);
}

#[test]
fn a_model_that_another_file_makes_and_that_freezes_itself_is_frozen() {
    let encoder = "\
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.requires_grad_(False)

    def forward(self, x):
        return self.layer(x)

def get_model():
    return Encoder()
";
    let extract = "\
import torch
from encoder import Encoder, get_model

made = get_model().eval()
for x in things:
    out = made(x)
own = Encoder()
own.eval()
for x in things:
    out = own(x)
";
    let trained = encoder.replace("        self.requires_grad_(False)\n", "");
    let files = [
        ("frozen/encoder.py", encoder),
        ("frozen/extract.py", extract),
        ("trained/encoder.py", &*trained),
        ("trained/extract.py", extract),
    ];
    assert_eq!(files_with_finding("eval-without-no-grad", &files), ["trained/extract.py"]);
}

#[test]
fn star_imports_are_followed() {
    let meters = "\
class Meter:
    def __init__(self):
        self.sum = 0

    def update(self, value, n=1):
        self.sum += value * n
";
    let train = "\
import torch
from utils import *

def train(model, criterion, loader):
    meters = {\"loss\": Meter(), \"accuracy\": Meter()}
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        meters[\"loss\"].update(LOSS)
";
    let tensor = train.replace("LOSS", "loss");
    let number = train.replace("LOSS", "loss.item()");
    let files = [
        ("one/utils/__init__.py", "from .meters import *\n"),
        ("one/utils/meters.py", meters),
        ("one/train.py", &*tensor),
        ("two/utils.py", meters),
        ("two/train.py", &*number),
    ];
    assert_eq!(files_with_finding("tensor-running-loss", &files), ["one/train.py"]);
}

#[test]
fn attributes_of_a_model_in_another_module_are_known() {
    let model = "\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.hidden = None

    def forward(self, x):
        out, self.hidden = self.encoder(x, self.hidden)
        return self.decoder(out)
";
    let train = "\
import torch
from model import Net

net = Net()
optimizer = torch.optim.Adam(net.decoder.parameters())
for x, y in loader:
    RESET
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
";
    let carried = train.replace("    RESET\n", "");
    let reset = train.replace("RESET", "net.hidden = None");
    let files = [
        ("one/model.py", model),
        ("one/train.py", &*carried),
        ("two/model.py", model),
        ("two/train.py", &*reset),
    ];
    assert_eq!(files_with_finding("recurrent-state-not-detached", &files), ["one/train.py"]);
    assert_eq!(files_with_finding("gradients-for-nothing", &files), ["one/train.py", "two/train.py"]);
    // What the model freezes itself needs no optimizer.
    let frozen = model.replace(
        "        self.hidden = None\n\n",
        "        self.hidden = None\n        self.encoder.requires_grad_(False)\n\n",
    );
    let files = [("one/model.py", &*frozen), ("one/train.py", &*carried)];
    assert_eq!(files_with_finding("gradients-for-nothing", &files), [] as [&str; 0]);
}

#[test]
fn workers_of_another_file_read_a_data_set() {
    let set = "\
import torch
from torch.utils.data import Dataset

class Sounds(Dataset):
    def __init__(self, sounds):
        self.sounds = torch.tensor(sounds).cuda()

    def __getitem__(self, index):
        return self.sounds[index]
";
    let loader = "from torch.utils.data import DataLoader\nfrom sounds import Sounds\nloader = DataLoader(Sounds(data), num_workers=WORKERS)\n";
    let (some, none) = (loader.replace("WORKERS", "4"), loader.replace("WORKERS", "0"));
    let files = [
        ("one/setup.py", ""),
        ("one/sounds.py", set),
        ("one/train.py", &*some),
        ("two/setup.py", ""),
        ("two/sounds.py", set),
        ("two/train.py", &*none),
    ];
    assert_eq!(files_with_finding("cuda-in-worker", &files), ["one/sounds.py"]);
}

/// Models and optimizers that functions of another file make.
const FACTORIES: &str = "\
import torch
import torch.nn as nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

def get_gan(kind):
    if kind == 'small':
        d = nn.Linear(4, 1)
        g = Net().train()
    elif kind == 'large':
        d = nn.Conv2d(3, 1, 1)
        g = Net()
    else:
        raise ValueError(kind)
    return d, g

def get_optimizers(d, g):
    return torch.optim.Adam(d.parameters()), torch.optim.Adam(g.parameters())
";

/// A GAN's training, with the line that clears the discriminator's gradients, and that with its fakes.
fn gan(clears: &str, judged: &str) -> String {
    format!(
        "\
import torch
import utils

def train(loader):
    d, g = utils.get_gan('small')
    d_opt, g_opt = utils.get_optimizers(d, g)
    loss_of = torch.nn.BCELoss()
    for x, ones, zeros in loader:
        {clears}
        fake = g(x)
        d_loss = loss_of(d(x), ones) + loss_of(d({judged}), zeros)
        d_loss.backward()
        d_opt.step()
        g_opt.zero_grad()
        g_loss = loss_of(d(g(x)), ones)
        g_loss.backward()
        g_opt.step()
"
    )
}

#[test]
fn models_of_a_factory_of_another_file_are_told_apart() {
    let found = |rule: &str, text: &str| {
        let files = [("pyproject.toml", ""), ("utils.py", FACTORIES), ("train.py", text)];
        !files_with_finding(rule, &files).is_empty()
    };
    let good = gan("d_opt.zero_grad()", "fake.detach()");
    assert!(!found("gradients-for-nothing", &good) && !found("missing-zero-grad", &good));
    assert!(found("gradients-for-nothing", &gan("d_opt.zero_grad()", "fake")));
    assert!(found("missing-zero-grad", &gan("pass", "fake.detach()")));
}

const STEPS: &str = "\
import torch

def train_epoch(loader, small, big, optimizer):
    small.train()
    big.eval()
    for x, y in loader:
        output = small(x)
        target = big(x)
        loss = torch.nn.functional.mse_loss(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
";

#[test]
fn callers_tell_which_models_no_optimizer_holds() {
    let main = "\
import torch
from steps import train_epoch
small, big = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(small.parameters())
train_epoch(loader, small, big, optimizer)
";
    let rule = "gradients-for-nothing";
    let files = |main| [("setup.cfg", ""), ("steps.py", STEPS), ("main.py", main)];
    assert_eq!(files_with_finding(rule, &files(main)), ["steps.py"]);
    let frozen = main.replace("optimizer =", "big.requires_grad_(False)\noptimizer =");
    assert_eq!(files_with_finding(rule, &files(&frozen)), [] as [&str; 0]);
    let held = main.replace("small.parameters())", "list(small.parameters()) + list(big.parameters()))");
    assert_eq!(files_with_finding(rule, &files(&held)), [] as [&str; 0]);
}

#[test]
fn callers_tell_what_clears_an_optimizer() {
    let steps = "\
import torch

def step(model, optimizer, x):
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
";
    let main = "\
import torch
from steps import step
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
for x in loader:
    step(model, optimizer, x)
";
    let rule = "missing-zero-grad";
    let files = |main| [("setup.cfg", ""), ("steps.py", steps), ("main.py", main)];
    assert_eq!(files_with_finding(rule, &files(main)), ["steps.py"]);
    let cleared = format!("{main}    optimizer.zero_grad()\n");
    assert_eq!(files_with_finding(rule, &files(&cleared)), [] as [&str; 0]);
}

#[test]
fn callers_tell_which_loss_a_model_with_a_softmax_meets() {
    let model = "\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return torch.softmax(self.layer(x), dim=1)
";
    let steps = "\
import torch

def train(net, criterion, loader):
    for x, y in loader:
        output = net(x)
        criterion(output, y).backward()
";
    let main = "\
import torch
from model import Net
from steps import train
train(Net(), torch.nn.CrossEntropyLoss(), loader)
";
    let rule = "softmax-before-cross-entropy";
    let files = |main| [("setup.cfg", ""), ("model.py", model), ("steps.py", steps), ("main.py", main)];
    assert_eq!(files_with_finding(rule, &files(main)), ["steps.py"]);
    let other = main.replace("CrossEntropyLoss", "MSELoss");
    assert_eq!(files_with_finding(rule, &files(&other)), [] as [&str; 0]);
}

#[test]
fn scalers_of_other_files_are_updated_there_or_nowhere() {
    let steps = "\
import torch

def train(model, optimizer, loader, scaler):
    for x in loader:
        with torch.autocast(\"cuda\"):
            loss = model(x).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
";
    let main = "\
import torch
from steps import train
scaler = torch.amp.GradScaler(\"cuda\")
train(model, optimizer, loader, scaler)
";
    let rule = "scaler-call-missing";
    let files = |main| [("setup.cfg", ""), ("steps.py", steps), ("main.py", main)];
    assert_eq!(files_with_finding(rule, &files(main)), ["steps.py"]);
    let updated = format!("{main}scaler.update()\n");
    assert_eq!(files_with_finding(rule, &files(&updated)), [] as [&str; 0]);
}

#[test]
fn buffers_of_other_files_are_sampled_there() {
    let buffer = "\
import random
import torch

class Buffer:
    def __init__(self):
        self.items = []
        self.at = 0

    def push(self, state, action):
        self.items[self.at] = (state, action)
        self.at += 1

    def sample(self, count):
        return random.sample(self.items, count)
";
    let main = "\
import torch
from buffer import Buffer
actor = torch.nn.Linear(4, 2)
buffer = Buffer()
while True:
    action = actor(torch.as_tensor(state))
    buffer.push(state, action)
    state = env.step(action.argmax().item())
";
    let rule = "graph-in-container";
    let files = |main| [("setup.cfg", ""), ("buffer.py", buffer), ("main.py", main)];
    assert_eq!(files_with_finding(rule, &files(main)), ["main.py"]);
    let detached = main.replace("push(state, action)", "push(state, action.detach())");
    assert_eq!(files_with_finding(rule, &files(&detached)), [] as [&str; 0]);
}

#[test]
fn a_branch_for_the_card_is_taken_in_the_workers_of_its_own_set() {
    let set = "\
import torch
from torch.utils.data import Dataset

class Corpus(Dataset):
    def __init__(self, lines, cuda):
        self.lines, self.cuda = lines, cuda

    def __getitem__(self, index):
        item = torch.tensor(self.lines[index])
        if self.cuda:
            item = item.cuda()
        return item
";
    let main = "\
import torch
from torch.utils.data import DataLoader
from corpus import Corpus
loader = DataLoader(dataset=Corpus(lines, True), num_workers=4)
";
    let files = |main| [("setup.cfg", ""), ("corpus.py", set), ("main.py", main)];
    assert_eq!(files_with_finding("cuda-in-worker", &files(main)), ["corpus.py"]);
    let other = main.replace("DataLoader(dataset=Corpus(lines, True),", "DataLoader(Images(),");
    assert_eq!(files_with_finding("cuda-in-worker", &files(&other)), [] as [&str; 0]);
}

#[test]
fn a_loss_is_known_by_the_function_of_another_file_that_differentiates_it() {
    let agent = "\
import torch
from steps import update

class Agent:
    def __init__(self, optimizer, objective):
        self.optimizer = optimizer
        self.objective = objective
        self.losses = []

    def learn(self, batch):
        loss, error = self.objective(batch)
        self.losses.append(loss)
        update(self.optimizer, loss)
        return float(error)
";
    let update = |body: &str| {
        format!(
            "import torch\n\ndef update(optimizer, loss):\n    optimizer.zero_grad()\n    {body}\n    optimizer.step()\n"
        )
    };
    let found = |body: &str| {
        files_with_finding("tensor-running-loss", &[("agent.py", agent), ("steps.py", &update(body))])
    };
    assert_eq!(found("loss.backward()"), ["agent.py"]);
    // What it differentiates is computed of the argument.
    assert_eq!(found("torch.nn.functional.mse_loss(loss, target).backward()"), Vec::<String>::new());
}
