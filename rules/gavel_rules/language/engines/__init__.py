"""The two engines that evaluate conditions: the Rete network, and CEL's own evaluator as the reference."""
