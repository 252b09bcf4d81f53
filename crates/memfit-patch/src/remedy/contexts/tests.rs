//! Tests of contexts around a line.

use super::*;

#[test]
fn a_line_is_under_autocast_whatever_it_is_called() {
    let step = "    for batch in loader:\n        with ctx:\n            loss = model(batch)\n";
    for (before, around, expected) in [
        ("ctx = torch.autocast(\"cuda\", dtype=torch.bfloat16)\n", step, true),
        (
            "ctx = nullcontext() if cpu else torch.amp.autocast(device_type=\"cuda\", dtype=kind)\n",
            step,
            true,
        ),
        ("ctx = torch.autocast(\n    device_type=\"cuda\",\n    dtype=torch.float16,\n)\n", step, true),
        ("ctx = torch.autocast(\"cuda\", enabled=True)\n", step, true),
        ("ctx = torch.autocast(\"cuda\", enabled=False)\n", step, false),
        ("ctx = torch.autocast(\"cuda\", enabled=args.amp)\n", step, false),
        ("ctx = torch.no_grad()  # not autocast\n", step, false),
        ("other = torch.autocast(\"cuda\")\n", step, false),
        ("", "    with torch.autocast(\"cuda\"), timer:\n        loss = model(batch)\n", true),
        (
            "",
            "    with (\n        torch.autocast(\"cuda\"),\n        timer,\n    ):\n        loss = model(batch)\n",
            true,
        ),
        ("", "    with torch.autocast(\"cuda\"):\n        pass\n    loss = model(batch)\n", false),
        (
            "def half():\n    return torch.autocast(\"cuda\")\n",
            "    with half():\n        loss = model(batch)\n",
            true,
        ),
        ("def half():\n    return None\n", "    with half():\n        loss = model(batch)\n", false),
        (
            "self.half = torch.autocast(\"cuda\")\n",
            "    with self.half:\n        loss = model(batch)\n",
            true,
        ),
    ] {
        for decorated in ["", "@profile\n"] {
            let text = format!("{before}{decorated}def train(model, loader):\n{around}");
            let line = text.lines().position(|line| line.contains("model(batch)")).unwrap() as u32 + 1;
            assert_eq!(enters(&Script::read(&text).unwrap(), line, &is_autocast), expected, "{text}");
        }
    }
    let decorated = "@torch.autocast(\"cuda\")\ndef train(model, batch):\n    return model(batch)\n";
    assert!(enters(&Script::read(decorated).unwrap(), 3, &is_autocast));
    assert!(!enters(&Script::read(&format!("{decorated}\nmodel(batch)\n")).unwrap(), 5, &is_autocast));
}

#[test]
fn gradients_are_off_under_a_with_and_under_a_decorator() {
    for (text, expected) in [
        ("@torch.no_grad()\ndef f():\n    model(x)\n", true),
        ("@torch.no_grad\ndef f():\n    model(x)\n", true),
        ("def f():\n  with torch.inference_mode():\n    model(x)\n", true),
        ("def f():\n  with torch.enable_grad():\n    model(x)\n", false),
        ("@torch.no_grad()\ndef g():\n    pass\ndef f():\n    model(x)\n", false),
    ] {
        let line = text.lines().position(|line| line.contains("model(x)")).unwrap() as u32 + 1;
        assert_eq!(enters(&Script::read(text).unwrap(), line, &is_no_grad), expected, "{text}");
    }
}

#[test]
fn lines_of_the_users_code_are_asked_about_by_file() {
    let text = "import torch\nwith torch.autocast(\"cuda\"):\n    model(a)\nwith torch.no_grad():\n    model(b)\nmodel(c)\n";
    let read = |file: &str| (file == "train.py").then(|| text.to_owned());
    let code = Code::new(&read, crate::code::Ran::new([], None));
    let both = |file: &str, line: u32| (code.is_under_autocast(file, line), code.is_without_grad(file, line));
    assert_eq!(both("train.py", 3), (true, false));
    assert_eq!(both("train.py", 5), (false, true));
    assert_eq!(both("train.py", 6), (false, false));
    assert_eq!(both("other.py", 3), (false, false), "no such file");
    assert_eq!(both("train.py", 99), (false, false), "no such line");
}
