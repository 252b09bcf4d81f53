//! Tests of what the source shows about the training around a recorded call.

use super::*;

/// Code of a program of which these lines ran.
fn with_code<T>(text: &str, ran: &[Site], ask: impl Fn(&Code<'_>) -> T) -> T {
    let read = |file: &str| (file == FILE).then(|| text.to_owned());
    ask(&Code::new(&read, Ran::new(ran.iter().cloned(), Some(FILE.to_owned()))))
}

/// Answers for a stack whose lines are marked `#0` (innermost) and `#1`.
fn is_ahead(text: &str) -> bool {
    let stack: Vec<Site> = ["#0", "#1"].iter().flat_map(|mark| sites(text, &[mark])).collect();
    with_code(text, &stack, |code| code.backward_is_ahead(&stack))
}

#[test]
fn layers_called_one_by_one_belong_to_a_pass_whose_backward_is_ahead() {
    for text in [
        "for step in range(3):\n    x = batch()\n    for block in blocks:\n        x = x + block(x) #0\n    loss = x.mean()\n    loss.backward()\n",
        "for task in tasks:\n    losses.append(f(task)) #0\ntorch.stack(losses).mean().backward()\n",
        "for x, y in loader:\n    criterion(model(x), y).backward() #0\n",
        "for x, y in loader:\n    with autocast():\n        loss = f(model(x), y) #0\n    scaler.scale(loss).backward()\n",
        "def forward(x):\n    for block in blocks:\n        x = block(x) #0\n    return x\n\nfor x in loader:\n    out = forward(x) #1\n    loss = out.sum()\n    loss.backward()\n",
        "def forward(x):\n    return block(x) #0\n\nfor x in loader:\n    forward(x).sum().backward() #1\n",
    ] {
        assert!(is_ahead(text), "{text}");
    }
}

#[test]
fn an_evaluation_and_later_training_have_no_backward_of_the_same_graph_ahead() {
    for text in [
        // No backward pass at all.
        "for x in loader:\n    out.append(model(x)) #0\n",
        // Only some iterations reach it.
        "for i, x in enumerate(loader):\n    total += model(x).mean() #0\n    if i % 4 == 3:\n        total.backward()\n",
        // The backward pass of this loop was before.
        "for x in loader:\n    model(x).mean().backward()\n    seen.append(model(x)) #0\n",
        // An evaluation between the steps, whose result is dropped or only printed.
        "def validate():\n    for x in held_out:\n        seen.append(model(x)) #0\n\nfor x in loader:\n    validate() #1\n    loss = model(x).mean()\n    loss.backward()\n",
        "def validate():\n    return [model(x) for x in held_out] #0\n\nfor x in loader:\n    accuracy = validate() #1\n    print(accuracy)\n    loss = model(x).mean()\n    loss.backward()\n",
        // Features for a training run of another model, in a loop of its own.
        "for x in loader:\n    features.append(model(x)) #0\nfor epoch in range(9):\n    loss = head(torch.stack(features)).mean()\n    loss.backward()\n",
        // Functions of a file are defined in any order.
        "def evaluate(x):\n    return model(x) #0\n\ndef train(x):\n    model(x).mean().backward()\n\nevaluate(1) #1\n",
    ] {
        assert!(!is_ahead(text), "{text}");
    }
}

#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method's path is not general over the code's lifetime"
)]
fn only_evaluates(text: &str) -> bool {
    with_code(text, &sites(text, &["print(model(x))"]), |code| code.only_evaluates())
}

#[test]
fn a_program_that_only_evaluates_has_nothing_that_trains() {
    let served = "import torch\nmodel = Net.from_pretrained('a').cuda().eval()\nfor x in requests:\n    print(model(x))\n";
    assert!(only_evaluates(served));
    for more in [
        "loss.backward()\n",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\noptimizer.step()\n",
        "model.train()\n",
        "train_epoch(model)\n",
        "engine.fit(model)\n",
        "SFTTrainer(model)\n",
    ] {
        assert!(!only_evaluates(&format!("{served}{more}")), "{more}");
    }
    assert!(!only_evaluates(&served.replace(".eval()", "")), "nothing says that it is an evaluation");
}
