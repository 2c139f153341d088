"""In place of SGLang's questions about the machine."""


def is_arch_support_pdl():
    return False
