"""What a listing of instructions is counted as, and a real kernel's census by way of the confined compiler."""

from tools.plan.sass import counts

LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/              @!P0 LDG.E R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0040*/                   FFMA R4, R4, R5, R6 ;
        /*0050*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*0060*/             @!UP1 UTMALDG.2D [UR8], [UR4] ;
        /*0070*/                   STL [R1], R3 ;
        /*0080*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0090*/                   NOP ;
"""


def test_instructions_are_counted_by_class_and_global_accesses_by_width() -> None:
    assert counts(LISTING) == {
        "integer and other": 1,
        "global load 128": 1,
        "global load 32": 1,
        "tensor core": 1,
        "float": 1,
        "global store 16": 1,
        "bulk copy": 1,
        "spill": 1,
        "shared load": 1,
    }
