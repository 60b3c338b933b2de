"""The weights disturbed before the first step, each by a share of itself. For benchmarks/curves.py."""

from .base import Act as _Base


class Act(_Base):
    name = "disturbed"

    def on_optimizer(self, optimizer):
        torch = self.context.torch
        generator = torch.Generator().manual_seed(self.settings["seed"])
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
                    parameter.mul_(1.0 + self.settings["share"] * drawn)

    def evidence(self):
        return {"planted": True}
