"""A program on three ranks ends with the right status and message, whichever rank throws, and never hangs."""

import programs

CASES = [  # how it ends, exit status, how often the text is printed, the text
    ("none", 0, 0, "tessera"),
    ("seven", 7, 0, "tessera: error"),
    ("all", 1, 1, "tessera: error on all 3 ranks: the same on all"),
    ("each", 1, 3, "tessera: error on rank "),
    ("agree", 1, 1, "tessera: error on all 3 ranks: no such file (on rank 2 of 3)"),
    ("one", 1, 1, "tessera: error on rank 2 of 3: only here"),
    ("terminate", 1, 1, "tessera: rank 2: uncaught"),
    ("pending", 1, 1, "tessera: error on rank 2 of 3: with a receive pending"),
    ("reducing", 1, 1, "tessera: error on rank 2 of 3: with a reduction pending"),
    ("scope", 1, 1, "tessera: rank 2 ends with an exception while others go on"),
    ("late", 1, 1, "barrier, 0 bytes (this is rank 0 of 3, transport mpi): not complete after"),
]


def main():
    t = programs.Programs("ends")
    for way, status, times, text in CASES:
        done = t.mpirun(3, "tests/ends", way, environment={"TESSERA_TIMEOUT": "20"}, limit=60)
        t.check(f"ends {way}: status {status}, {times} times '{text}'",
                done.status == status and done.output.count(text) == times, f"status {done.status}\n{done.output}")
    t.finish()


if __name__ == "__main__":
    main()
