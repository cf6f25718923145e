#!/usr/bin/env python3
"""The CosmoFlow training step of bench/gpu/cosmoflow.cpp in PyTorch on one GPU, for comparison: the same network, batch 1,
Adam, mean squared error. Prints one JSON line; nothing where PyTorch or a GPU is missing.

    python3 bench/gpu/torch_step.py WIDTH STEPS [full|tf32]
"""
import json
import statistics
import sys
import time


def network(nn, width):
    layers, channels, side = [], 4, width
    for out, stride in ((16, 1), (32, 1), (64, 1), (128, 2), (256, 1), (256, 1), (256, 1)):
        layers += [nn.Conv3d(channels, out, 3, stride=stride, padding=1, bias=False), nn.LeakyReLU(0.01)]
        channels, side = out, side // stride
        if side > 2:
            layers.append(nn.AvgPool3d(3, stride=2, padding=1))
            side //= 2
    layers += [nn.Flatten(), nn.Dropout(0.2), nn.Linear(256 * side ** 3, 2048), nn.LeakyReLU(0.01), nn.Dropout(0.2),
               nn.Linear(2048, 256), nn.LeakyReLU(0.01), nn.Dropout(0.2), nn.Linear(256, 4)]
    return nn.Sequential(*layers)


def main():
    width, steps = int(sys.argv[1]), int(sys.argv[2])
    math = sys.argv[3] if len(sys.argv) > 3 else "full"
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: no comparison", file=sys.stderr)
        return
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU: no comparison", file=sys.stderr)
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = math == "tf32"
    torch.backends.cudnn.benchmark = True
    seconds = {}
    for name, layout in (("ncdhw", torch.contiguous_format), ("ndhwc", torch.channels_last_3d)):
        net = network(torch.nn, width).cuda().to(memory_format=layout)
        adam = torch.optim.Adam(net.parameters(), lr=1e-5, fused=True)
        x = torch.rand(1, 4, width, width, width, device="cuda").to(memory_format=layout)
        t = torch.rand(1, 4, device="cuda")
        times = []
        for step in range(steps + 5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            adam.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(net(x), t).backward()
            adam.step()
            torch.cuda.synchronize()
            if step >= 5:
                times.append(time.perf_counter() - start)
        seconds[name] = statistics.median(times)
    best = min(seconds, key=seconds.get)
    print(json.dumps({"bench": "gpu_torch_step", "case": f"w{width} {'tf32' if math == 'tf32' else 'f32'} n1",
                      "value": seconds[best], "unit": "seconds",
                      "note": f"PyTorch {torch.__version__}, {best}, the faster of both layouts"}))


if __name__ == "__main__":
    main()
