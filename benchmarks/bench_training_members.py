"""How does the time of training grow with the number of members, against a loop over jitted members and `vmap`?

The perceptron of `bench_training` with width 128, from 1 to 256 members, measured in the same way.
"""

from bench_training import check_agreement, shortest_times
from measuring import Found, report

WIDTH, MEMBERS = 128, [1, 4, 16, 64, 256]


if __name__ == "__main__":
    difference = check_agreement(WIDTH)
    curve = shortest_times(WIDTH, MEMBERS, ["ours", "loops"])
    last = {name: times[-1] for name, times in curve.items()}
    found = Found(last.pop("ours"), last, difference)
    question = f"growth with members: up to {MEMBERS[-1]}, width {WIDTH}"
    report(question, peer="jitted loop", found=found, curve={"members": MEMBERS, **curve})
