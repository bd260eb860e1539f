/* Small pieces in one file: the ranks' pieces come in turns, and each call reads or writes many of a rank's own.
 *
 *   pieces FILE CALL ATOMIC SEED PIECE PIECES CALLS [HINT=VALUE…]
 *   pieces --library
 *
 * CALL is "together" for collective calls, "alone" for independent ones, and "single" for an independent call for each piece. ATOMIC is 1 or 0.
 * A piece has PIECE bytes, a multiple of 8; a call is about PIECES of them, and each rank makes CALLS calls that write and as many that read;
 * single ones are PIECES times as many. The file's words are those of its seed. Everything is done twice, and the second time is measured.
 * Rank 0 prints the times of the slowest rank as JSON, with the number of bytes that were read wrong. */
#include "job.h"

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--library")) return print_library();
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 8) fail(argv[0], "too few arguments");
    int together = !strcmp(argv[2], "together"), single = !strcmp(argv[2], "single"), atomic = atoi(argv[3]);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    int piece = atoi(argv[5]), pieces = atoi(argv[6]), calls = atoi(argv[7]), bytes = piece * pieces;

    uint64_t *mine = allocate((size_t)bytes * calls), *found = allocate((size_t)bytes * calls);
    for (int number = 0; number < pieces * calls; number++)
        for (int index = 0; index < piece / 8; index++)
            mine[number * (piece / 8) + index] = word(seed, ((uint64_t)number * size + rank) * (piece / 8) + index);
    MPI_Datatype vector, type;
    MPI_Type_vector(pieces, piece, piece * size, MPI_BYTE, &vector);
    MPI_Type_create_resized(vector, 0, (MPI_Aint)bytes * size, &type);
    MPI_Type_commit(&type);
    MPI_Info info = hints(argc - 8, argv + 8);
    MPI_File file = open_file(MPI_COMM_WORLD, argv[1], info, atomic);
    if (!single)
        check(MPI_File_set_view(file, (MPI_Offset)rank * piece, MPI_BYTE, type, "native", MPI_INFO_NULL), "MPI_File_set_view");

    int each = single ? piece : bytes, times_each = single ? pieces * calls : calls;
    double times[2] = {0};
    for (int step = 0; step < 4; step++) {
        int reads = step % 2;
        char *memory = (char *)(reads ? found : mine);
        if (reads) memset(found, 0, (size_t)bytes * calls);
        meet(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        for (int call = 0; call < times_each; call++) {
            void *part = memory + (size_t)call * each;
            MPI_Offset offset = single ? ((MPI_Offset)call * size + rank) * piece : (MPI_Offset)call * bytes;
            MPI_Status status;
            int done = 0;
            if (reads)
                check((together ? MPI_File_read_at_all : MPI_File_read_at)(file, offset, part, each, MPI_BYTE, &status), "reading");
            else
                check((together ? MPI_File_write_at_all : MPI_File_write_at)(file, offset, part, each, MPI_BYTE, &status), "writing");
            MPI_Get_count(&status, MPI_BYTE, &done);
            if (done != each) fail(argv[2], "not all bytes were moved");
        }
        times[reads] = MPI_Wtime() - begun;
        meet(MPI_COMM_WORLD);
    }
    long long wrong = 0, all = 0;
    for (size_t index = 0; index < (size_t)bytes * calls; index++) wrong += ((char *)mine)[index] != ((char *)found)[index];
    MPI_Reduce(&wrong, &all, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    double writing = greatest(times[0], MPI_COMM_WORLD), reading = greatest(times[1], MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"ranks\": %d, \"bytes\": %lld, \"write_s\": %.9f, \"read_s\": %.9f, \"wrong_read\": %lld}\n", size,
               (long long)bytes * calls * size, writing, reading, all);
    check(MPI_File_close(&file), "MPI_File_close");
    MPI_Type_free(&type);
    MPI_Type_free(&vector);
    MPI_Info_free(&info);
    free(mine);
    free(found);
    MPI_Finalize();
    return 0;
}
