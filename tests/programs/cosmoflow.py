"""The CosmoFlow example as its users run it: from universes to predictions, resumed on other grids, and with bad input."""

import csv
import json
import shutil

import programs

PARAMETERS = ("Omega_m", "sigma_8", "n_s", "H_0")
FINAL = {"event", "ranks", "grid", "width", "epochs", "test_mse", "seconds_per_step", "samples_per_second", "bytes_read",
         "halo_bytes_per_step", "peak_rss_bytes"}
TRAIN = ("--width", 32, "--batch", 4, "--norm", "batch", "--rate", 3e-4, "--no-plots")


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbers(folder):
    """What training gave: losses and errors of every epoch, and the test errors."""
    out = []
    for r in records(folder):
        if r["event"] == "epoch":
            out += [r["train_loss"], *r["validation_mse"].values()]
        else:
            out += r["test_mse"].values()
    return out


def close(a, b, tolerance):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(abs(x), abs(y)) for x, y in zip(a, b))


def train_and_resume(t):
    """Five epochs at once on 2 ranks; four there and the fifth elsewhere; predictions from the checkpoint."""
    made = t.mpirun(2, "examples/make_universes", "--count", 20, "--width", 32, "--cell", 8, "--out", "data")
    t.check("20 universes are made", made.status == 0 and len(list((t.folder / "data").glob("*.hdf5"))) == 20, made.output)

    whole = t.mpirun(2, "examples/cosmoflow", "--data", "data", *TRAIN, "--epochs", 5, "--schedule", "constant",
                     "--grid", "1x2x1x1", "--out", "whole")
    t.check("five epochs on 2 ranks", whole.status == 0, whole.output)
    found = records(t.folder / "whole")
    t.check("a record per epoch and a final one", [r["event"] for r in found] == ["epoch"] * 5 + ["final"], found)
    t.check("the final record has its fields", set(found[-1]) == FINAL and set(found[-1]["test_mse"]) == set(PARAMETERS),
            found[-1])
    t.check("... and its values", found[-1]["ranks"] == 2 and found[-1]["grid"] == "1x2x1x1" and found[-1]["width"] == 32
            and found[-1]["epochs"] == 5 and found[-1]["bytes_read"] > 0 and found[-1]["halo_bytes_per_step"] > 0, found[-1])
    with open(t.folder / "whole" / "predictions.csv", newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    t.check("predictions: true and predicted of every parameter",
            len(rows) >= 1 and all(f"{p}_{w}" in rows[0] for p in PARAMETERS for w in ("true", "predicted")), rows[:1])

    t.mpirun(2, "examples/cosmoflow", "--data", "data", *TRAIN, "--epochs", 4, "--schedule", "constant", "--out", "first")
    for ranks, grid in ((1, "1x1x1x1"), (4, "2x1x2x1"), (3, "1x3x1x1")):
        out = f"resumed-{grid}"
        done = t.mpirun(ranks, "examples/cosmoflow", "--data", "data", *TRAIN, "--epochs", 5, "--schedule", "constant",
                        "--grid", grid, "--resume", "first/checkpoint.h5", "--out", out)
        got, want = (numbers(t.folder / out), numbers(t.folder / "whole")[20:]) if done.status == 0 else ([], [1])
        t.check(f"resumed on {grid}, the fifth epoch is that of 2 ranks", close(got, want, 1e-3),
                f"{got}\n{want}\n{done.output}")
    shown = t.mpirun(2, "examples/cosmoflow", "--data", "data", *TRAIN, "--predict", "whole/checkpoint.h5", "--grid",
                     "2x1x1x1", "--out", "predicted")
    got = numbers(t.folder / "predicted")[-4:] if shown.status == 0 else []
    t.check("--predict gives the test errors of the training run", close(got, numbers(t.folder / "whole")[-4:], 1e-4),
            shown.output)


def bad_input(t):
    data = t.folder / "data"
    one = sorted(data.glob("*.hdf5"))[5]
    for name in ("truncated", "foreign", "few"):
        shutil.copytree(data, t.folder / name)
    with open(t.folder / "truncated" / one.name, "r+b") as f:
        f.truncate(one.stat().st_size // 2)
    (t.folder / "foreign" / one.name).write_text("not an HDF5 file\n")
    for path in sorted((t.folder / "few").glob("*.hdf5"))[2:]:
        path.unlink()
    (t.folder / "empty").mkdir()
    wrong = [  # what, arguments, texts that the message holds
        ("an unknown option", ("--data", "data", "--widht", 32), ("--widht", "--help")),
        ("a number that is none", ("--data", "data", "--width", "wide"), ("--width", "wide")),
        ("a width without a network", ("--data", "data", "--width", 48), ("--width 48", "32, 64, 128, 256 and 512")),
        ("a grid of other ranks", ("--data", "data", "--width", 32, "--grid", "1x3x1x1"), ("1x3x1x1", "2")),
        ("a grid that is none", ("--data", "data", "--width", 32, "--grid", "2by1"), ("2by1", "NxDxHxW")),
        ("another width than the files'", ("--data", "data", "--width", 64), ("64", "32", ".hdf5")),
        ("no such folder", ("--data", "nowhere", "--width", 32), ("nowhere",)),
        ("a folder without files", ("--data", "empty", "--width", 32), ("empty",)),
        ("too few files to split", ("--data", "few", "--width", 32), ("few", "at least 3")),
        ("a truncated file", ("--data", "truncated", "--width", 32), (one.name,)),
        ("a file of another kind", ("--data", "foreign", "--width", 32), (one.name,)),
        ("no such checkpoint", ("--data", "data", "--width", 32, "--resume", "none.h5"), ("none.h5",)),
        ("a checkpoint that is none", ("--data", "data", "--width", 32, "--resume", f"foreign/{one.name}"), (one.name,)),
        ("a checkpoint of another seed",
         ("--data", "data", "--width", 32, "--norm", "batch", "--seed", 7, "--resume", "whole/checkpoint.h5"), ("--seed 1",)),
        ("a checkpoint of another network", ("--data", "data", "--width", 32, "--resume", "whole/checkpoint.h5"),
         ("whole/checkpoint.h5", "does not fit the network", "batch_norm")),
        ("a batch of none", ("--data", "data", "--width", 32, "--batch", 0), ("--batch 0",)),
        ("a result folder that cannot be", ("--data", "data", "--width", 32, "--out", f"data/{one.name}/out"), ("--out",)),
    ]
    for what, arguments, texts in wrong:
        arguments = arguments if "--out" in arguments else (*arguments, "--out", "bad")
        done = t.mpirun(2, "examples/cosmoflow", *arguments, "--epochs", 3, "--no-plots", limit=60)
        t.check(f"{what}: an error on all ranks, said once",
                done.status > 0 and done.output.count("tessera: error on all 2 ranks") == 1
                and all(text in done.output for text in texts), f"status {done.status}\n{done.output}")


def full_disk(t):
    """The disk fills up while the checkpoint of the next epoch is written: an error, and the old checkpoint lives."""
    shutil.copytree(t.folder / "first", t.folder / "full")
    before = (t.folder / "full" / "checkpoint.h5").read_bytes()
    done = t.mpirun(2, "examples/cosmoflow", "--data", "data", *TRAIN, "--epochs", 5, "--resume", "full/checkpoint.h5",
                    "--out", "full", file_limit=20 << 20)
    t.check("a full disk: an error that names the file", done.status > 0 and "checkpoint.h5" in done.output
            and "tessera: error on all 2 ranks" in done.output, f"status {done.status}\n{done.output}")
    t.check("a full disk: the previous checkpoint is as it was",
            (t.folder / "full" / "checkpoint.h5").read_bytes() == before)
    t.check("a full disk: nothing half-written stays",
            sorted(p.name for p in (t.folder / "full").iterdir()) == ["checkpoint.h5", "metrics.jsonl", "predictions.csv"],
            sorted(p.name for p in (t.folder / "full").iterdir()))


def main():
    t = programs.Programs("cosmoflow")
    train_and_resume(t)
    bad_input(t)
    full_disk(t)
    shutil.rmtree(t.folder, ignore_errors=True)  # checkpoints are large
    t.finish()


if __name__ == "__main__":
    main()
